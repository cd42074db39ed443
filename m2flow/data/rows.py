# SPDX-License-Identifier: Apache-2.0
"""Rows of a data set as prompts: which column is which, and what is wrong with a row."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import UInt32

from m2flow.config import Config, counted, nearest
from m2flow.data.samples import Prompt
from m2flow.errors import DataError

MAX_SHOWN = 10
"""Bad rows that one error names; the rest is counted."""
ROLES = ("system", "developer", "user", "assistant", "tool")


class RowsConfig(Config):
    """Which columns make a prompt. All other columns are kept and given to rewards by name."""

    prompt_column: str | None = "prompt"
    """Column with the prompt's text; none where the prompts are chats."""
    messages_column: str | None = None
    """Column with the chat: a list of messages, each with role and content, the last one not the assistant's."""
    answer_column: str | None = "answer"
    """Column with the gold answer, which rewards get as ``answer``; none where there is no gold answer."""
    id_column: str | None = None
    """Column with an id of each row, unique; left out, the row's number serves."""
    chat: bool = False
    """Put the prompt's text into a chat, as the user's message."""
    system_prompt: str | None = None
    """First message of each chat; a chat that has a system message of its own is refused then."""

    def problems(self) -> list[str]:
        """Exactly one of the two columns; a system prompt needs a chat."""
        found = []
        if (self.prompt_column is None) == (self.messages_column is None):
            found.append("give one of prompt_column and messages_column, and set the other to none")
        if self.system_prompt is not None and not self.chat and self.messages_column is None:
            found.append("system_prompt is for a chat: set chat to true, or leave it out")
        if self.chat and self.messages_column is not None:
            found.append("chat is for prompts of plain text: messages_column gives chats already")
        return found

    def required_columns(self) -> list[str]:
        """Columns that a data set must have."""
        named = (self.prompt_column, self.messages_column, self.answer_column, self.id_column)
        return [name for name in named if name is not None]


def column_problem(present: Sequence[str], config: RowsConfig) -> str | None:
    """What is wrong with the columns that there are, in words."""
    missing = [
        f"no column '{name}': {nearest(name, present)}" for name in config.required_columns() if name not in present
    ]
    if missing:
        hint = ["set answer_column to none if there are no gold answers"] * (config.answer_column not in present)
        return "; ".join([*missing, *(hint if config.answer_column else [])])
    if config.answer_column not in (None, "answer") and "answer" in present:
        return (
            f"a column 'answer' besides '{config.answer_column}', which is to be given to rewards under that name: "
            "rename one of the two, or use answer_column='answer'"
        )
    return None


def prompt_of(row: Mapping[str, Any], config: RowsConfig, *, default_id: str) -> Prompt:
    """The prompt in ``row``.

    Raises:
        ValueError: what is wrong with the row; the caller knows where it is.
    """
    rest = {key: value for key, value in row.items() if key not in (config.prompt_column, config.messages_column)}
    if config.answer_column is not None:
        rest["answer"] = rest.pop(config.answer_column)
    prompt_id = default_id if config.id_column is None else _id(row, config.id_column)
    if config.messages_column is not None:
        return Prompt(id=prompt_id, messages=_chat(row[config.messages_column], config), columns=rest)
    text = _text(row[config.prompt_column or ""], f"column '{config.prompt_column}'")
    if not config.chat:
        return Prompt(id=prompt_id, text=text, columns=rest)
    return Prompt(id=prompt_id, messages=(*_system(config), {"role": "user", "content": text}), columns=rest)


def _id(row: Mapping[str, Any], column: str) -> str:
    if not isinstance(row[column], str | int) or isinstance(row[column], bool):
        raise ValueError(f"column '{column}' holds {short(row[column])}, expected an id: text or a whole number")
    return str(row[column])


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} holds {short(value)} ({type(value).__name__}), expected text")
    if not value.strip():
        raise ValueError(f"{where} is empty, expected a prompt")
    return value


def _system(config: RowsConfig) -> tuple[Mapping[str, str], ...]:
    return () if config.system_prompt is None else ({"role": "system", "content": config.system_prompt},)


def _chat(value: Any, config: RowsConfig) -> tuple[Mapping[str, str], ...]:
    where = f"column '{config.messages_column}'"
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where} holds {short(value)} ({type(value).__name__}), expected a list of messages")
    messages = tuple(_message(message, f"{where}, message {i + 1}") for i, message in enumerate(value))
    if messages[-1]["role"] == "assistant":
        raise ValueError(f"{where} ends with the assistant's message, expected a chat that the model is to answer")
    if config.system_prompt is not None and messages[0]["role"] == "system":
        raise ValueError(f"{where} has a system message already: set system_prompt to none")
    return (*_system(config), *messages)


def _message(message: Any, where: str) -> Mapping[str, str]:
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
        raise ValueError(f"{where} is {short(message)}, expected a mapping with 'role' and 'content'")
    # Columnar files give every message every key; the ones it did not have are null.
    given = {key: value for key, value in message.items() if value is not None}
    if given.get("role") not in ROLES:
        raise ValueError(f"{where} has the role {short(message['role'])}, expected one of {', '.join(ROLES)}")
    if extra := sorted(set(given) - {"role", "content", "name"}):
        raise ValueError(f"{where} has '{extra[0]}', which is not supported: role, content and name are")
    return {key: _text(value, f"{where}: {key}") for key, value in given.items() if key != "content"} | {
        "content": _text(message["content"], f"{where}: content")
    }


def short(value: Any) -> str:
    """``repr``, cut to what fits in a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


Row = tuple[str, Callable[[], Mapping[str, Any]]]
"""A row's place (file and line, say), and a function that reads it; it raises ValueError where the row is damaged."""


def inspect(rows: Iterable[Row], config: RowsConfig, *, where: str) -> UInt32[np.ndarray, "n"]:
    """Look at every row; return a hash of what each prompt asks.

    Raises:
        DataError: there are none, or some cannot be used: the first ten by place, and how many in all.
    """
    for problem in config.problems():
        raise DataError(f"{where}: {problem}")
    bad: list[str] = []
    hashes: list[int] = []
    ids: dict[str, str] = {}
    for place, read in rows:
        try:
            hashes.append(_inspect_one(read(), config, place=place, ids=ids))
        except ValueError as error:
            bad.append(f"  {place}: {error}")
    if bad:
        more = [f"  and {len(bad) - MAX_SHOWN} more"] if len(bad) > MAX_SHOWN else []
        head = f"{where} has {counted(len(bad), 'row')} that cannot be used; mend or remove them:"
        raise DataError("\n".join([head, *bad[:MAX_SHOWN], *more]))
    if not hashes:
        raise DataError(f"{where} is empty: expected at least one prompt")
    return np.array(hashes, dtype=np.uint32)


def _inspect_one(row: Mapping[str, Any], config: RowsConfig, *, place: str, ids: dict[str, str]) -> int:
    if problem := column_problem(list(row), config):
        raise ValueError(problem)
    prompt = prompt_of(row, config, default_id=place)
    if config.id_column is not None and (first := ids.setdefault(prompt.id, place)) != place:
        raise ValueError(f"the id '{prompt.id}' was taken already, by {first}: ids must be unique")
    return prompt_hash(prompt)


def prompt_hash(prompt: Prompt) -> int:
    """32 bits that depend on nothing but what is asked."""
    asked = prompt.text if prompt.messages is None else json.dumps([dict(m) for m in prompt.messages], sort_keys=True)
    return int.from_bytes(blake2b((asked or "").encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")
