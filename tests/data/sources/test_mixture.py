# SPDX-License-Identifier: Apache-2.0
from collections import Counter

from m2flow.data.interleaving import interleave
from m2flow.data.prompts import MathPrompts, PromptsConfig
from tests.data.sources.conftest import source

SUMS = {"name": "addition", "digits": 1}
CHAINS = {"name": "reasoning_gym", "task": "chain_sum", "size": 10}


def test_every_prompt_comes_once_and_the_shorter_part_as_often_as_its_weight_says():
    rows = source("mixture", parts=[{"source": SUMS, "weight": 3}, {"source": CHAINS, "weight": 1.5}])
    ids = [rows[i].id for i in range(len(rows))]
    assert Counter(i.partition("/")[0] for i in ids) == {"0": 100, "1": 50}
    assert len(set(ids)) == 150 and ids[2] == "0/addition/0+1"
    assert Counter(i.partition("#")[0] for i in ids if i.startswith("1/")) == {
        f"1/chain_sum/0/{i}": 5 for i in range(10)
    }
    assert rows[ids.index("1/chain_sum/0/3#4")].text == rows[ids.index("1/chain_sum/0/3")].text


def test_parts_alternate_as_their_weights_say():
    assert [int(part) for part, _ in interleave([4, 2], [2, 1])] == [0, 1, 0, 0, 1, 0]
    assert [int(part) for part, _ in interleave([3, 3], [1 / 3, 1 / 3])] == [0, 1, 0, 1, 0, 1]


def test_a_mixture_is_split_and_taken_like_any_source():
    mixture = {"name": "mixture", "parts": [{"source": SUMS}, {"source": CHAINS}]}
    train, held_out = (MathPrompts(PromptsConfig(source=mixture, split=split)) for split in ("train", "held_out"))
    asked = [{prompt.text for prompt in side.take(len(side))} for side in (train, held_out)]
    assert not asked[0] & asked[1] and len(train) + len(held_out) == 200
