# SPDX-License-Identifier: Apache-2.0
"""One page for each algorithm, with its formula, its source and all its options as they are."""

import re
from pathlib import Path

import pytest
from option_tables import filled, table
from written import PAGES, ROOT, headings, read

from m2flow import registry

FOLDER = ROOT / "docs" / "algorithms"
ALGORITHMS = registry.names("algorithms")


def test_every_algorithm_has_a_page_and_every_page_an_algorithm():
    assert sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index") == ALGORITHMS


def test_the_overview_lists_every_algorithm_in_its_table():
    assert sorted(re.findall(r"^\| \[`(\w+)`\]\(\1\.md\) \|", read("docs/algorithms/index.md"), re.M)) == ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_page_has_formula_source_options_and_differences(name: str):
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert [h for h in headings(text) if h.startswith("## ")] == [
        "## Formula",
        "## Source",
        "## Options",
        "## Where others differ",
    ]
    formula, source = (text.partition(f"## {part}\n")[2].partition("\n## ")[0] for part in ("Formula", "Source"))
    assert formula.count("$$") >= 2
    assert re.search(r"\b(19|20)\d\d\b", source)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_stands_on_the_page_with_its_default(name: str):
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    for option, field in registry.load("algorithms", name).Config.model_fields.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{option}` |"))
        shown = {"None": "none", "()": "none", "True": "on", "False": "off"}.get(str(field.default), str(field.default))
        assert f"| `{shown}` |" in row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_of_options_are_those_of_the_classes(page: Path):
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text, "run `make format`, which writes the tables"


def test_a_table_tells_values_ranges_defaults_and_nested_options():
    rows = table("trainers/local", under="trainer").splitlines()
    assert "| `learning_rate` | number >= 0 | `1e-06` | AdamW's, of the policy. |" in rows
    assert any(row.startswith("| `schedule.shape` | constant, linear, cosine | `constant` |") for row in rows)
    assert any(row.startswith("| `activation_checkpointing` | on, off | `off` |") for row in rows)


def test_a_page_that_is_out_of_date_is_noticed():
    marker = "<!-- options: rewards/tagged -->\n\n"
    assert filled(f"{marker}| `tags` | nothing |\n\nrest") == f"{marker}{table('rewards/tagged')}\nrest"
