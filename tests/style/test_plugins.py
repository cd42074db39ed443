# SPDX-License-Identifier: Apache-2.0
"""One plug-in is one file with one public class, whose Config is nested in it."""

import ast
from pathlib import Path

import pytest
from source_tree import ROOT, Function, identifier, parsed, python, require_none, where

from m2flow.registry import PACKAGES, names

FOLDERS = {kind: Path(ROOT, *package.split(".")) for kind, package in PACKAGES.items()}
PLUGINS = [pytest.param(FOLDERS[kind] / f"{name}.py", id=f"{kind}-{name}") for kind in PACKAGES for name in names(kind)]


@pytest.mark.parametrize("path", PLUGINS)
def test_a_plug_in_file_has_one_public_class_with_its_config_nested(path: Path):
    classes = [node for node in parsed(path).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    assert [node.name for node in classes] == [path.stem.replace("_", " ").title().replace(" ", "")]
    assert "Config" in [node.name for node in classes[0].body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("path", PLUGINS)
def test_a_plug_in_file_has_no_other_public_function(path: Path):
    require_none(n.name for n in parsed(path).body if isinstance(n, Function) and not n.name.startswith("_"))


@pytest.mark.parametrize("kind", sorted(PACKAGES))
def test_every_kind_has_a_base_and_at_least_one_plug_in(kind: str):
    assert (FOLDERS[kind] / "base.py").is_file() and names(kind)


IDS = {kind: names(kind) for kind in PACKAGES}


def _words(name: str) -> list[str]:
    spaced = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    return [word for word in spaced.split("_") if word]


def _named_in(name: str) -> set[str]:
    """Kinds that have a plug-in whose whole id is part of ``name``."""
    text = f"_{'_'.join(_words(name))}_"
    return {kind for kind, plugins in IDS.items() for plugin in plugins if f"_{plugin}_" in text}


def test_no_name_joins_two_kinds_of_plug_ins():
    joined = [
        f"{where(path)} {name}"
        for path in python("m2flow")
        for name in (path.stem, *(n.name for n in ast.walk(parsed(path)) if isinstance(n, Function | ast.ClassDef)))
        if len(_named_in(name)) > 1
    ]
    require_none(joined)


def _constants(node: ast.expr) -> set[object]:
    return {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)}


def test_no_code_asks_which_plug_in_it_has():
    plugins = {name for kind in PACKAGES for name in names(kind)}
    asked = [
        where(path, node)
        for path in python("m2flow")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Compare)
        and identifier(node.left) in ("name", "algorithm", "engine", "trainer", "policy", "reward", "logger", "source")
        and plugins & set().union(*map(_constants, node.comparators))
    ]
    require_none(asked)


def test_no_code_asks_for_a_type_by_name():
    asked = [
        where(path, node)
        for path in python("m2flow")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Compare)
        and identifier(node.left).endswith(("_type", "_kind", "_mode"))
        and any(isinstance(value, str) for value in set().union(*map(_constants, node.comparators)))
    ]
    require_none(asked)


def _num_arms(node: ast.If) -> int:
    if not node.orelse:
        return 1
    follows = node.orelse[0]
    return 1 + (_num_arms(follows) if len(node.orelse) == 1 and isinstance(follows, ast.If) else 1)


def test_no_chain_of_conditions_has_more_than_three_arms():
    require_none(
        where(path, node)
        for path in python()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.If) and _num_arms(node) > 3
    )
