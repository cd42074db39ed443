# SPDX-License-Identifier: Apache-2.0
"""What the README shows is what there is, and its Chinese twin says the same."""

import ast
import re
from pathlib import Path

import pytest
from written import ROOT, blocks, headings, links, read

from m2flow import registry
from m2flow.cli import concepts

README, CHINESE = read("README.md"), read("README.zh-CN.md")
EXAMPLE = "examples/reasoning/grpo_math.py"


def rows(text: str) -> list[tuple[list[str], str]]:
    """The table of places: the classes that a row names, and its link."""
    found = re.findall(r"^\| (.+?) \| \[.+?\]\((.+?)\) \|$", text, re.MULTILINE)
    return [(re.findall(r"`([A-Z]\w+)`", what), link) for what, link in found]


PLACES = [(name, link) for names, link in rows(README) for name in names]


def test_it_fits_on_three_screens():
    assert len(README.splitlines()) <= 150 and len(CHINESE.splitlines()) <= 150


def test_the_loop_is_that_of_the_example():
    source = read(EXAMPLE)
    main = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "main")
    assert ast.get_source_segment(source, main) in [block.strip() for block in blocks(README, "python")]


@pytest.mark.parametrize(("name", "link"), PLACES, ids=lambda value: Path(value).stem)
def test_a_class_is_where_the_table_says_and_where_the_program_says(name: str, link: str):
    classes = [node.name for node in ast.parse(read(link)).body if isinstance(node, ast.ClassDef)]
    assert name in classes
    assert ROOT / link in [place.path for place in concepts.where(name)]


def test_the_table_of_places_is_found_and_names_all_public_classes_of_the_loop():
    named = {name for name, _ in PLACES}
    assert len(PLACES) >= 20
    assert {"Run", "Rollout", "Reward", "MathReward", "Learner", "Llm", "Config"} <= named


def test_every_command_of_make_that_is_shown_is_a_target():
    targets = re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE)
    pages = [README, CHINESE, read("CONTRIBUTING.md"), read("docs/first_run.md"), read("docs/index.md")]
    shown = {name for page in pages for name in re.findall(r"(?:^|`)make ([a-z]+)", page, re.MULTILINE)}
    assert {"demo", "test", "docs"} <= shown <= set(targets)


@pytest.mark.parametrize("text", [README, CHINESE], ids=["english", "chinese"])
def test_every_algorithm_is_named(text: str):
    said = re.sub(r"[^a-z+]", "", text.lower())
    assert not [n for n in registry.names("algorithms") if n.replace("_pp", "++").replace("_", "") not in said]


def test_the_chinese_one_has_the_same_sections_code_links_and_rows():
    assert [h.split()[0] for h in headings(CHINESE)] == [h.split()[0] for h in headings(README)]
    assert [uncommented(b) for b in blocks(CHINESE)] == [uncommented(b) for b in blocks(README)]
    assert targets(CHINESE) == targets(README)
    assert rows(CHINESE) == rows(README)
    assert items(CHINESE) == items(README)


def targets(text: str) -> set[str]:
    """Files that are linked to, but for the two READMEs, which name each other."""
    return {link for link in links(text) if not link.startswith(("#", "README"))}


def uncommented(block: str) -> list[str]:
    """Lines of code without what stands after two spaces and a #, which is translated."""
    return [re.sub(r"\s+# .*$", "", line) for line in block.splitlines()]


def items(text: str) -> list[int]:
    """How many list items and table rows each section has."""
    return [len(re.findall(r"^(?:- |\| )", part, re.MULTILINE)) for part in re.split(r"^#+ ", text, flags=re.MULTILINE)]


def test_sections_of_the_chinese_one_are_in_chinese():
    assert all(re.search(r"[\u4e00-\u9fff]", h) for h in headings(CHINESE)[1:])
