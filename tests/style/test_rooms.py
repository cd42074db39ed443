# SPDX-License-Identifier: Apache-2.0
"""The package is a set of rooms with plain names, and each imports only rooms that stand before it."""

import re
from collections import Counter
from pathlib import Path

import pytest
from source_tree import PACKAGE, ROOT, imports, python, require_none, where

TIERS = (
    ("errors",),
    ("config",),
    ("registry",),
    ("spec",),
    ("observe",),
    ("data",),
    ("algorithms", "envs", "policies", "rewards"),
    ("transport",),
    ("trainers", "engines", "checkpoint", "weights"),
    ("runtime",),
    ("flow",),
    ("cli",),
)
"""A room imports itself and rooms of earlier tiers; rooms of one tier do not know each other."""

VAGUE = {"utils", "util", "common", "helpers", "helper", "misc", "core", "legacy", "v1", "v2", "lib", "shared", "tools"}
TIER_OF = {room: number for number, tier in enumerate(TIERS) for room in tier}


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "m2flow" else ""


def _rooms() -> list[Path]:
    return [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]


def test_there_are_at_most_sixteen_rooms_each_with_a_place_in_the_order():
    names = {path.name for path in _rooms()}
    assert len(names) <= 16
    assert names | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"} == set(TIER_OF)


def test_rooms_are_single_words_and_at_most_two_levels_deep():
    folders = {path.parent.relative_to(PACKAGE) for path in python("m2flow")}
    require_none(str(f) for f in folders if len(f.parts) > 2)
    require_none(str(f) for f in folders if not all(re.fullmatch("[a-z]+", part) for part in f.parts))


def test_no_name_says_nothing():
    named = [path for path in python() if {path.stem, *path.relative_to(ROOT).parts[:-1]} & VAGUE]
    require_none(where(path) for path in named)


def test_every_file_name_is_there_once():
    found = Counter(path.name for path in python() if path.name not in ("__init__.py", "base.py", "conftest.py"))
    require_none(name for name, number in found.items() if number > 1)


@pytest.mark.parametrize("room", sorted(TIER_OF))
def test_a_room_imports_only_rooms_before_it(room: str):
    paths = python(f"m2flow/{room}") or [PACKAGE / f"{room}.py"]
    wrong = [
        f"{where(path, node)} imports {module}"
        for path in paths
        for module, node in imports(path)
        if (other := _room(module)) in TIER_OF and other != room and TIER_OF[other] >= TIER_OF[room]
    ]
    require_none(wrong)


def test_nothing_in_the_package_imports_the_tests_or_the_examples():
    wrong = [
        f"{where(path, node)} imports {module}"
        for path in python("m2flow")
        for module, node in imports(path)
        if module.split(".")[0] in ("tests", "examples", "benchmarks", "pytest", "hypothesis")
    ]
    require_none(wrong)
