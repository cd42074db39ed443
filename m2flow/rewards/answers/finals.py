# SPDX-License-Identifier: Apache-2.0
"""Where the final answer stands in a response. Every function takes time linear in the text."""

import re
from collections.abc import Callable
from typing import Literal

Extract = Literal["boxed", "boxed_only", "last_number", "first_line", "marker"]

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_SPECIAL = re.compile(r"\\.|[{}]", re.DOTALL)
_NUMBER = re.compile(r"[-+−]?\$?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:/\d+)?(?:\s?\\?%)?")
_MARKER = re.compile(r"####|answer(?:\s+is\s*:?|\s*[:=])", re.IGNORECASE)
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:(?:final|correct)\s+)?answer(?:\s+is\s*:?|\s*[:=])\s*",
    re.IGNORECASE,
)


def extract_final(text: str, how: Extract) -> str | None:
    """The part of a response that is compared; ``None`` where it has no such part.

    - ``boxed``: what the last ``\\boxed{...}`` holds, otherwise the whole text;
    - ``boxed_only``: what the last ``\\boxed{...}`` holds;
    - ``last_number``: the last box, otherwise the last number in the text;
    - ``first_line``: the last box of the first line that is not blank, otherwise that line;
    - ``marker``: the last box, otherwise the rest of the line after the last ``####``, ``answer is`` or ``answer:``.

    A box that is never closed holds no answer, and no other part of the text stands in for it.
    """
    scope = _first_line(text) if how == "first_line" else text
    boxed, found = last_box(scope)
    if boxed:
        return found
    return _ELSE[how](scope)


def last_box(text: str) -> tuple[bool, str | None]:
    """Whether there is a ``\\boxed`` at all, and what the last one holds (``None``: it is not closed)."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    match = _BOX.match(text, start) if start >= 0 else None
    if match is None:
        return False, None
    if not text.startswith("{", match.end()):
        bare = re.compile(r"[^\s$\\{}]*").match(text, match.end())
        return True, (bare.group().rstrip(".,;") if bare else "") or None
    end = _closing(text, match.end())
    return True, None if end is None else text[match.end() + 1 : end]


def _closing(text: str, start: int) -> int | None:
    depth = 0
    for match in _SPECIAL.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0 and match.group() == "}":
            return match.start()
    return None


def _first_line(text: str) -> str:
    return text.lstrip().partition("\n")[0].strip()


def _whole(text: str) -> str | None:
    text = text.strip()
    lead = _LEAD.match(text)
    return text[lead.end() :] or None if lead else text or None


def _no_box(text: str) -> str | None:
    return None


def _last_number(text: str) -> str | None:
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007
        pass
    if found is None:
        return None
    # A minus sign between two numbers or letters is a subtraction, not a sign: "7-3" ends in 3.
    before = text[found.start() - 1] if found.start() else " "
    number = found.group()
    return number.lstrip("-+−") if before.isalnum() else number


def _after_marker(text: str) -> str | None:
    end = None
    for match in _MARKER.finditer(text):
        end = match.end()
    return None if end is None else _first_line(text[end:]) or None


_ELSE: dict[str, Callable[[str], str | None]] = {
    "boxed": _whole,
    "boxed_only": _no_box,
    "last_number": _last_number,
    "first_line": _whole,
    "marker": _after_marker,
}


def gold_final(gold: str) -> str | None:
    """The answer in a data set's gold column, which may be a whole worked solution with a box or a ``####`` line."""
    boxed, found = last_box(gold)
    if boxed:
        return found
    return (gold.rpartition("####")[2]).strip() or None
