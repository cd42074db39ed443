# SPDX-License-Identifier: Apache-2.0
"""The repository's own files, parsed; every rule in this folder reads them from here."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "m2flow"
FOLDERS = ("m2flow", "examples", "benchmarks", "docs", "tests", ".ci")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def require_none(found: Iterable[object]) -> None:
    """Fail with the whole list, where there is anything in it."""
    listed = [str(one) for one in found]
    assert not listed, "\n" + "\n".join(listed)


def files(*suffixes: str, under: str | None = None) -> list[Path]:
    """The repository's files of these kinds (all, where none is given): those of its folders and those at its top."""
    folders = [ROOT / under] if under else [ROOT / name for name in FOLDERS]
    found = [path for folder in folders if folder.is_dir() for path in folder.rglob("*")]
    found += [] if under else list(ROOT.iterdir())
    return sorted(
        p for p in found if p.is_file() and "__pycache__" not in p.parts and (not suffixes or p.suffix in suffixes)
    )


def python(under: str | None = None) -> list[Path]:
    """Python files."""
    return files(".py", under=under)


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def where(path: Path, node: ast.AST | None = None) -> str:
    """A place as a terminal links it."""
    line = f":{node.lineno}" if isinstance(node, ast.stmt | ast.expr | ast.excepthandler) else ""
    return f"{path.relative_to(ROOT)}{line}"


@dataclass(frozen=True)
class Found:
    """A function or class, and what it stands in."""

    path: Path
    node: Function | ast.ClassDef
    parents: tuple[Function | ast.ClassDef, ...]

    @property
    def name(self) -> str:
        """Dotted, with what it stands in."""
        return ".".join(node.name for node in (*self.parents, self.node))

    @property
    def is_public(self) -> bool:
        """No part of the name begins with an underscore, and no function hides it."""
        names = [*(node.name for node in self.parents), self.node.name]
        return not any(n.startswith("_") for n in names) and not any(isinstance(p, Function) for p in self.parents)

    def __str__(self) -> str:
        return f"{where(self.path, self.node)} {self.name}"


def definitions(path: Path) -> Iterator[Found]:
    """All functions and classes of a file, inner ones too."""

    def walk(node: ast.AST, parents: tuple[Function | ast.ClassDef, ...]) -> Iterator[Found]:
        for child in ast.iter_child_nodes(node):
            inner = parents
            if isinstance(child, Function | ast.ClassDef):
                yield Found(path, child, parents)
                inner = (*parents, child)
            yield from walk(child, inner)

    yield from walk(parsed(path), ())


def functions(*folders: str) -> Iterator[Found]:
    """All functions of these folders."""
    for folder in folders:
        for path in python(folder):
            yield from (found for found in definitions(path) if isinstance(found.node, Function))


def classes(*folders: str) -> Iterator[Found]:
    """All classes of these folders."""
    for folder in folders:
        for path in python(folder):
            yield from (found for found in definitions(path) if isinstance(found.node, ast.ClassDef))


def identifier(node: ast.AST) -> str:
    """The last name of ``a`` or ``a.b``; empty for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Modules that a file imports, wherever in it; ``from m2flow import config`` gives ``m2flow.config``."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)
