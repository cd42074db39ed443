# SPDX-License-Identifier: Apache-2.0
"""Samples with their rewards as a table for the terminal. What a model writes is data: it is shown, never obeyed."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from m2flow.observe.headlines import figure
from m2flow.observe.line_file import number

MAX_CELLS = 240
"""Columns of a terminal that one text may fill before it is cut, over all its lines."""


def sample_table(iteration: int, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of ``rows``, each with prompt, completion, reward, and the parts of the reward where there are
    several."""
    parts = _parts(rows)
    table = Table(
        title=f"samples of iteration {iteration + 1}", box=box.SIMPLE_HEAD, title_justify="left", expand=False
    )
    table.add_column("reward", justify="right", no_wrap=True)
    for part in parts:
        table.add_column(Text(shown(part)), justify="right", no_wrap=True)
    table.add_column("prompt", overflow="fold", ratio=1)
    table.add_column("completion", overflow="fold", ratio=1)
    table.add_column("tokens", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, parts))
    return table


def _parts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.get("rewards") or {}))
    return names if len(names) > 1 else []


def _cells(row: Mapping[str, Any], parts: Sequence[str]) -> list[Text]:
    rewards = row.get("rewards") or {}
    return [
        _reward(row.get("reward")),
        *(Text(figure(number(rewards.get(part))), style="dim") for part in parts),
        Text(cut(_with_breaks(row["prompt"]), keep_end=True)),
        Text(cut(_with_breaks(row["completion"]))),
        _length(row),
    ]


def _reward(value: Any) -> Text:
    reward = number(value)
    if reward is None:
        return Text("–", style="dim")
    return Text(figure(reward), style="green" if reward > 0 else "red" if reward < 0 else "yellow")


def _length(row: Mapping[str, Any]) -> Text:
    tokens = number(row.get("tokens"))
    cut_off = row.get("finish_reason") == "length"
    return Text(figure(tokens) + (" cut" if cut_off else ""), style="yellow" if cut_off else "dim")


def _with_breaks(text: str) -> str:
    return shown(text).replace("\n", "↵\n").removesuffix("\n")


def shown(text: str) -> str:
    """``text`` with everything that could move the cursor, ring a bell or hide itself written out, as in ``\\x1b``."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    if character == "\t":
        return "    "
    # Joiners hold emoji and scripts together, and only change how their neighbours look.
    if unicodedata.category(character) == "Zs" or character in "\u200c\u200d":
        return character
    return character.encode("unicode_escape").decode("ascii")


def cut(text: str, *, keep_end: bool = False) -> str:
    """``text`` on at most ``MAX_CELLS`` columns: its beginning, or its end where a prompt's question stands."""
    if cell_len(text) <= MAX_CELLS:
        return text
    kept, used = [], 0
    for character in reversed(text) if keep_end else text:
        used += cell_len(character)
        if used >= MAX_CELLS:
            break
        kept.append(character)
    return "…" + "".join(reversed(kept)) if keep_end else "".join(kept) + "…"
