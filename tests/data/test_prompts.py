# SPDX-License-Identifier: Apache-2.0
"""The endless reader: shuffled by seed, resumable at any prompt, honest about its data set."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2flow.data.prompts import MathPrompts, Prompts, PromptsConfig
from m2flow.errors import CheckpointError, ConfigError, DataError


def small(**values: Any) -> Prompts:
    """100 one-digit problems, so that epochs are short."""
    return Prompts(PromptsConfig(**{"source": {"name": "addition", "digits": 1}, "split": "all", **values}))


def ids(prompts: Prompts, num: int) -> list[str]:
    return [prompt.id for prompt in prompts.take(num)]


@settings(max_examples=60, deadline=None)
@given(
    before=st.integers(0, 250),
    after=st.integers(0, 250),
    max_prompts=st.integers(1, 100),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_resumed_reader_goes_on_as_if_it_had_not_stopped(
    before: int, after: int, max_prompts: int, shuffle: bool, seed: int
):
    options: dict[str, Any] = {"max_prompts": max_prompts, "shuffle": shuffle, "seed": seed}
    whole = small(**options)
    whole.take(before)
    state = json.loads(json.dumps(whole.state()))
    resumed = small(**options)
    resumed.load_state(state)
    assert resumed.take(after) == whole.take(after)
    assert resumed.state() == whole.state()


def test_an_epoch_ends_exactly_where_the_next_begins():
    prompts = small()
    first = ids(prompts, 100)
    assert prompts.state()["epoch"] == 1 and prompts.state()["position"] == 0
    resumed = small()
    resumed.load_state(prompts.state())
    second = ids(resumed, 100)
    assert sorted(first) == sorted(second) and len(set(first)) == 100
    assert first != second


def test_the_size_of_the_portions_does_not_matter():
    one, many = small(), small()
    assert ids(one, 90) == [name for _ in range(30) for name in ids(many, 3)]


def test_seeds_shuffle_differently_and_no_shuffle_keeps_the_order():
    assert ids(small(seed=1), 20) != ids(small(seed=2), 20)
    assert ids(small(shuffle=False), 3) == ["addition/0+0", "addition/0+1", "addition/0+2"]


def test_a_prompt_that_comes_twice_in_one_call_has_two_ids():
    names = ids(small(max_prompts=3), 8)
    assert len(set(names)) == 8
    assert {name.partition("@")[2] for name in names} == {"", "1", "2"}


def test_taking_nothing_moves_nothing_and_less_than_nothing_is_refused():
    prompts = small()
    assert prompts.take(0) == [] and prompts.state()["position"] == 0
    with pytest.raises(DataError, match="cannot take -1 prompts"):
        prompts.take(-1)


@pytest.mark.parametrize(
    "other",
    [
        {"max_prompts": 99},
        {"seed": 1},
        {"shuffle": False},
        {"split": "train"},
        {"source": {"name": "addition", "digits": 1, "full_width": True, "shots": 1}},
    ],
)
def test_a_position_of_another_data_set_or_order_is_refused(other: dict[str, Any]):
    state = small().state()
    with pytest.raises(CheckpointError, match="other prompts or another order"):
        small(**other).load_state(state)


def test_the_splits_of_any_source_are_disjoint_and_complete(tmp_path: Path):
    rows = [json.dumps({"prompt": f"question {i % 400}", "answer": i}) for i in range(800)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    source = {"name": "jsonl", "path": tmp_path / "rows.jsonl"}
    parts = {split: Prompts(PromptsConfig(source=source, split=split)) for split in ("train", "held_out", "all")}
    asked = {split: {prompt.text for prompt in part.take(len(part))} for split, part in parts.items()}
    assert not asked["train"] & asked["held_out"], "the same question, twice in the file, is on one side"
    assert asked["train"] | asked["held_out"] == asked["all"]
    assert 20 <= len(asked["held_out"]) <= 60


def test_a_part_without_prompts_is_refused(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "one", "answer": 1}')
    source = {"name": "jsonl", "path": tmp_path / "rows.jsonl"}
    with pytest.raises(DataError, match="no prompt is in the part 'held_out' of 1 prompts"):
        Prompts(PromptsConfig(source=source, split="held_out"))


def test_prompts_for_mathematics_need_answers(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "one"}')
    source = {"name": "jsonl", "path": tmp_path / "rows.jsonl", "answer_column": None}
    config = PromptsConfig(source=source, split="all")
    assert Prompts(config).take(1)[0].text == "one"
    with pytest.raises(DataError, match="no gold answers"):
        MathPrompts(config)


def test_the_default_is_the_built_in_arithmetic():
    prompts = MathPrompts()
    assert len(prompts) == 8999
    prompt = prompts.take(1)[0]
    a, b = prompt.id.removeprefix("addition/").split("+")
    assert prompt.text == f"{a}+{b}=" and prompt.columns["answer"] == str(int(a) + int(b))


def test_a_bare_name_picks_a_source():
    with pytest.raises(ConfigError, match=r"source.path: required"):
        PromptsConfig(source="jsonl")


def test_prompts_that_are_too_long_are_left_out(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "{"x" * n}", "answer": "1"}}\n' for n in range(1, 7)))
    config = PromptsConfig(source={"name": "jsonl", "path": path}, split="all", shuffle=False, max_characters=4)
    prompts = Prompts(config)
    assert [len(prompt.text or "") for prompt in prompts.take(5)] == [1, 2, 3, 4, 1]
    before = prompts.fingerprint
    assert [prompt.text for prompt in prompts.filter(lambda p: len(p.text or "") % 2 == 0).take(3)] == [
        "xx",
        "xxxx",
        "xx",
    ]
    assert prompts.fingerprint != before
    with pytest.raises(DataError, match="none of 2 prompts is kept"):
        prompts.filter(lambda prompt: False)
