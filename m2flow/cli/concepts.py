# SPDX-License-Identifier: Apache-2.0
"""Where things are: plug-ins, classes, rooms and terms, found by reading the sources, not by importing them."""

import ast
import difflib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from m2flow.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
LINE_EDITORS = ("vi", "vim", "nvim", "nano", "emacs", "emacsclient", "micro", "kak", "helix", "hx", "joe", "ne")
"""Editors that take ``+12 file``; the others get the file alone."""


@dataclass(frozen=True)
class Place:
    """A definition or a description: what it is called, its file and line, and what its docstring says first."""

    name: str
    path: Path
    line: int
    summary: str
    rank: int
    """0: a file or room, 1: a class, 2: a function or a term of the docs, 3: a method or field."""


@lru_cache(maxsize=1)
def _places() -> tuple[Place, ...]:
    found: list[Place] = []
    for path in sorted(ROOT.rglob("*.py")):
        found += _in_file(path)
    for path in sorted((ROOT.parent / "docs").rglob("*.md")):
        found += _in_page(path)
    return tuple(found)


def _in_page(path: Path) -> Iterator[Place]:
    """Headings, and terms in bold at the beginning of a line or list item (the glossary)."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if match := re.match(r"#+ +(?P<heading>.+)|(?:[-*] +)?\*\*(?P<term>[^*]+?):?\*\*:? *(?P<rest>.*)", line):
            yield Place(match["heading"] or match["term"], path, number, match["rest"] or "", 2)


def _in_file(path: Path) -> Iterator[Place]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.parent.name if path.stem == "__init__" else path.stem
    yield Place(name, path, 1, _first_line(tree), 0)
    for node in tree.body:
        yield from _definition(node, path, rank=1)
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            yield from (
                Place(f"{_name(node)}.{p.name}", p.path, p.line, p.summary, 3) for p in _definition(inner, path, rank=3)
            )


def _definition(node: ast.stmt, path: Path, *, rank: int) -> Iterator[Place]:
    name = _name(node)
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not name.startswith("_"):
        yield Place(name, path, node.lineno, _first_line(node), rank if isinstance(node, ast.ClassDef) else rank + 1)
    elif isinstance(node, ast.AnnAssign) and not name.startswith("_"):
        yield Place(name, path, node.lineno, "", 3)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign):
        return node.target.id if isinstance(node.target, ast.Name) else "_"
    return getattr(node, "name", "_")


def _first_line(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def _plain(name: str) -> str:
    """Without case, spaces and separators: ``Dr. GRPO``, ``dr_grpo`` and ``DrGrpo`` are one."""
    return re.sub(r"[^a-z0-9.]", "", name.lower()).strip(".").replace("dr.", "dr")


def where(concept: str) -> list[Place]:
    """Places of ``concept``, best first: what is called so, else what has such a member, else what speaks of it.

    Raises:
        ConfigError: there is none; the nearest names are given.
    """
    wanted = _plain(concept)
    everything = _places()
    called = [p for p in everything if p.rank < 3 and _plain(p.name) == wanted]
    members = [p for p in everything if _plain(p.name) == wanted or _plain(p.name).endswith(f".{wanted}")]
    word = re.compile(rf"\b{re.escape(concept.replace('_', ' '))}", re.IGNORECASE)
    about = [p for p in everything if word.search(p.summary)]
    found = called or members or about
    if not found:
        names = {p.name: None for p in everything if p.rank < 3}
        close = difflib.get_close_matches(concept, names, n=3, cutoff=0.5)
        hint = (
            f"did you mean {', '.join(close)}?" if close else "give a plug-in, a class, a folder of m2flow/ or a term"
        )
        raise ConfigError(f"nothing is called '{concept}', and no description speaks of it: {hint}")
    return sorted(found, key=lambda p: (p.rank, len(p.path.parts)))


def beginning(incomplete: str) -> list[str]:
    """Names of files, classes and functions that begin so, for the shell to complete."""
    return sorted({p.name for p in _places() if p.rank < 3 and p.name.startswith(incomplete) and " " not in p.name})


def open_in_editor(place: Place) -> None:
    """Open the file in ``$VISUAL`` or ``$EDITOR``.

    Raises:
        ConfigError: neither is set, or the editor is not there.
    """
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not editor:
        raise ConfigError("no editor is set: export EDITOR=vim, say")
    at_line = [f"+{place.line}"] if Path(editor[0]).name in LINE_EDITORS else []
    try:
        subprocess.run([*editor, *at_line, str(place.path)], check=False)
    except FileNotFoundError:
        raise ConfigError(f"the editor '{editor[0]}' is not there: set EDITOR to one that is") from None
