# SPDX-License-Identifier: Apache-2.0
"""Prompts to tokens: chat templates, raw text, and the tokens that end a response."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from jinja2 import Environment, TemplateError, meta
from transformers import GenerationConfig

from m2flow.data.samples import Prompt
from m2flow.errors import DataError, ModelError
from m2flow.policies.language.options import ChatConfig

MARK = "m2flow-turn"
"""Stands for an assistant's answer when the token after it is looked up."""
GIVEN = frozenset({"messages", "add_generation_prompt", "tools", "documents"})
"""Variables of a template that transformers fills in."""


class PromptEncoder:
    """Turns prompts into tokens with one tokenizer.

    Raises:
        ModelError: the chat configuration does not fit the tokenizer.
    """

    def __init__(self, tokenizer: Any, config: ChatConfig) -> None:
        self.tokenizer = tokenizer
        self.config = config
        template = config.template.read_text(encoding="utf-8") if config.template else tokenizer.chat_template
        self.template: str | None = template if isinstance(template, str) else None
        self._require_used()

    def encode(self, prompt: Prompt) -> Int[np.ndarray, "P"]:
        """Tokens of the prompt: its chat up to where the assistant's turn begins, or its text.

        Raises:
            DataError: the prompt is empty, or has both text and messages or neither.
            ModelError: a chat, and the tokenizer has no chat template.
        """
        if (prompt.text is None) == (prompt.messages is None):
            raise DataError(
                f"prompt '{prompt.id}' has both or neither of 'text' and 'messages': give exactly one of them"
            )
        ids = self._text_ids(prompt) if prompt.messages is None else self._chat_ids(prompt)
        if not ids:
            raise DataError(f"prompt '{prompt.id}' is empty: it has no tokens, so that there is nothing to continue")
        return np.asarray(ids, dtype=np.int64)

    def _text_ids(self, prompt: Prompt) -> Sequence[int]:
        if self.config.system is not None:
            raise DataError(
                f"prompt '{prompt.id}' is raw text, which has no place for chat.system = {self.config.system!r}: "
                "give prompts as messages, or leave 'system' out"
            )
        return self.tokenizer(prompt.text, verbose=False)["input_ids"] if prompt.text else []

    def _chat_ids(self, prompt: Prompt) -> Sequence[int]:
        if not prompt.messages:
            return []
        text = self.render([dict(message) for message in prompt.messages], source=f"prompt '{prompt.id}'")
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def render(self, messages: Sequence[Mapping[str, str]], *, source: str, opens_answer: bool = True) -> str:
        """The chat as text; ``opens_answer`` appends the beginning of the assistant's turn."""
        if self.template is None:
            raise ModelError(
                f"{source} is a chat, and the tokenizer has no chat template: take a chat model, set chat.template "
                "to a file with a Jinja template, or give raw text"
            )
        if self.config.system is not None and messages[0].get("role") != "system":
            messages = [{"role": "system", "content": self.config.system}, *messages]
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                chat_template=self.template,
                add_generation_prompt=opens_answer,
                tokenize=False,
                **self.config.options,
            )
        except TemplateError as error:
            raise DataError(f"the chat template refuses {source}: {error}") from error

    def turn_end(self) -> int | None:
        """The special token that the template puts after an assistant's answer, such as ``<|im_end|>``."""
        if self.template is None:
            return None
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}]
        rest = self.render(chat, source="a chat of two turns", opens_answer=False).rpartition(MARK)[2].lstrip()
        following = self.tokenizer(rest, add_special_tokens=False)["input_ids"][:1] if rest else []
        return following[0] if following and following[0] in self.tokenizer.added_tokens_decoder else None

    def _require_used(self) -> None:
        wanted = sorted(self.config.options)
        if self.template is None and (wanted or self.config.system is not None):
            raise ModelError("chat.options or chat.system are set, and the tokenizer has no chat template to use them")
        if not wanted or self.template is None:
            return
        read = meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(self.template))
        unread = [name for name in wanted if name not in read or name in GIVEN]
        if unread:
            raise ModelError(
                f"the chat template does not read {', '.join(unread)} of chat.options; it reads "
                f"{', '.join(sorted(read - GIVEN))}"
            )


def stop_tokens(tokenizer: Any, generation: GenerationConfig, *, turn_end: int | None) -> tuple[int, ...]:
    """Tokens that end a response, sorted: of the generation config, the tokenizer, and the end of a chat turn.

    Raises:
        ModelError: there is none, so that every response would run to its limit.
    """
    eos = generation.eos_token_id
    named = eos if isinstance(eos, Iterable) else [eos]
    found = sorted({int(token) for token in (*named, tokenizer.eos_token_id, turn_end) if token is not None})
    if not found:
        raise ModelError(
            "neither generation_config.json nor the tokenizer names an end-of-sequence token, so no response would "
            "end: set eos_token_id in generation_config.json"
        )
    return tuple(found)
