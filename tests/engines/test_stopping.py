# SPDX-License-Identifier: Apache-2.0
"""Where responses end, told byte by byte."""

import numpy as np
import pytest

from m2flow.engines.base import SamplingConfig
from m2flow.engines.decoding.stopping import Stopping
from m2flow.policies.llm import Llm


@pytest.fixture
def bytewise(llama: Llm) -> Llm:
    """A policy whose only stop token is none of the bytes."""
    llama.stop_token_ids = (256,)
    return llama


def first_end(policy: Llm, text: str, *stop: str) -> int | None:
    """After how many tokens of ``text`` a response ends."""
    stopping = Stopping(policy, SamplingConfig(stop=stop))
    tokens = np.array(policy.tokenizer(text)["input_ids"])
    return next((n for n in range(1, len(tokens) + 1) if stopping.ended(tokens[None, :n])[0]), None)


@pytest.mark.parametrize(
    ("text", "stop", "number"),
    [
        ("the end", ("x",), None),
        ("ab.cd.", (".",), 3),
        ("ab\n\ncd", ("\n\n",), 4),
        ("one Question: two", ("Question:", "two"), 13),
        ("one Question: two", ("two", "one"), 3),
        ("né, é", ("é",), 3),  # two bytes
        ("price 5€ now", ("€ n",), 12),
        ("a" * 50 + "stop here", ("stop here",), 59),
    ],
)
def test_a_response_ends_with_the_token_that_completes_a_stop_string(
    bytewise: Llm, text: str, stop: tuple[str, ...], number: int | None
):
    assert first_end(bytewise, text, *stop) == number


def test_rows_end_one_by_one(bytewise: Llm):
    stopping = Stopping(bytewise, SamplingConfig(stop=("b",)))
    rows = [bytewise.tokenizer(text)["input_ids"] for text in ("xxb", "xyz", "xxx")]
    rows.append([*rows[2][:2], 256])
    assert stopping.ended(np.array(rows)).tolist() == [True, False, False, True]


def test_the_text_ends_before_the_first_stop_string_and_has_no_stop_token(bytewise: Llm):
    tokens = np.array(bytewise.tokenizer("xy, z. w")["input_ids"])
    assert Stopping(bytewise, SamplingConfig(stop=(".", ","))).text(tokens) == "xy"
    assert Stopping(bytewise, SamplingConfig(stop=("!",))).text(tokens) == "xy, z. w"
    ended = np.append(tokens, 256)
    assert Stopping(bytewise, SamplingConfig()).text(ended) == "xy, z. w"


def test_only_the_tail_is_decoded(bytewise: Llm, monkeypatch: pytest.MonkeyPatch):
    sizes = []
    plain = bytewise.decode
    monkeypatch.setattr(bytewise, "decode", lambda tokens: sizes.append(len(tokens)) or plain(tokens))
    Stopping(bytewise, SamplingConfig(stop=("abc", "é"))).ended(np.full((2, 1000), 70))
    assert sizes == [7, 7]
