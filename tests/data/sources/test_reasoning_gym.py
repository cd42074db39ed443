# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
import reasoning_gym

from m2flow.errors import DataError
from tests.data.sources.conftest import source

OPTIONS = {"min_terms": 2, "max_terms": 3}


def test_problems_are_those_of_the_task_with_answers_that_it_accepts():
    rows = source("reasoning_gym", task="chain_sum", size=20, seed=5, options=OPTIONS)
    own = reasoning_gym.create_dataset("chain_sum", size=20, seed=5, **OPTIONS)
    judge: Any = reasoning_gym.get_score_answer_fn("chain_sum")
    assert len(rows) == 20
    for index, entry in enumerate(own):
        prompt = rows[index]
        assert prompt.text == entry["question"] and prompt.columns["answer"] == entry["answer"]
        assert judge(prompt.columns["answer"], prompt.columns["entry"]) == 1
        assert prompt.id == f"chain_sum/5/{index}" and prompt.columns["task"] == "chain_sum"


def test_seeds_give_other_problems_and_chats_ask_the_same():
    one, other = (source("reasoning_gym", task="chain_sum", size=10, seed=seed) for seed in (0, 1))
    assert list(one.hashes) != list(other.hashes)
    chat = source("reasoning_gym", task="chain_sum", size=10, seed=0, chat=True, system_prompt="Think.")
    assert [m["content"] for m in chat[3].messages or ()] == ["Think.", one[3].text]


def test_what_it_does_not_know_is_refused():
    with pytest.raises(DataError, match=r"has no task 'chain_sums': did you mean 'chain_sum'\?"):
        source("reasoning_gym", task="chain_sums")
    with pytest.raises(DataError, match=r"refuses the options of chain_sum, .*'terms': 3"):
        source("reasoning_gym", task="chain_sum", options={"terms": 3})
    with pytest.raises(DataError, match="refuses the options of chain_sum"):
        source("reasoning_gym", task="chain_sum", options={"min_terms": 3, "max_terms": 2})
    with pytest.raises(DataError, match="system_prompt is for a chat"):
        source("reasoning_gym", task="chain_sum", system_prompt="Think.")
