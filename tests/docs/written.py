# SPDX-License-Identifier: Apache-2.0
"""The repository's Markdown: its pages, and the blocks, links and headings in them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP = [ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = sorted((ROOT / "docs").rglob("*.md"))

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def read(name: str) -> str:
    """The text of a file, by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str | None = None) -> list[str]:
    """What stands in fenced blocks (of one language)."""
    return [body for found, body in _FENCED.findall(text) if language in (None, found)]


def prose(text: str) -> str:
    """The text without fenced blocks."""
    return _FENCED.sub("", text)


def links(text: str) -> list[str]:
    """Where links lead to."""
    return _LINK.findall(prose(text))


def headings(text: str) -> list[str]:
    """Headings with their signs."""
    return re.findall(r"^#+ .+$", prose(text), re.MULTILINE)


def anchor(heading: str) -> str:
    """The name under which a heading can be linked to."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lstrip("# ").lower())).strip("-")
