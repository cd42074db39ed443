# SPDX-License-Identifier: Apache-2.0
import pytest

from m2flow.errors import ConfigError
from m2flow.registry import build, choose
from m2flow.rewards.base import Response


def value(completion: str, **options: object) -> float | None:
    """The reward of one completion."""
    config = choose("rewards", {"name": "tagged", **options})
    return build(config).score([Response(completion=completion)])[0].value


@pytest.mark.parametrize(
    "completion",
    ["<think>a</think><answer>b</answer>", "\n<think>\na <b>c</b>\n</think>\n\n<answer> 5 </answer> "],
)
def test_all_parts_once_and_in_order_give_one(completion):
    assert value(completion) == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "5",
        "<think>a</think>",
        "<answer>b</answer><think>a</think>",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think>a<answer>b</answer></think>",
        "<think></think><answer>b</answer>",
        "<think>a</think>so<answer>b</answer>",
        "<think>a</think><answer>b</answer> and more",
        "<think>a</think><answer>b",
        "<THINK>a</THINK><answer>b</answer>",
    ],
)
def test_any_other_form_gives_zero(completion):
    assert value(completion) == 0.0


def test_an_opening_tag_in_the_prompt_is_not_asked_for_again():
    assert value("a</think><answer>b</answer>", opened=True) == 1.0
    assert value("<think>a</think><answer>b</answer>", opened=True) == 0.0
    assert value("</think><answer>b</answer>", opened=True) == 0.0


def test_other_tags_can_be_asked_for():
    assert value("<plan>a</plan>", tags=("plan",)) == 1.0


@pytest.mark.parametrize("tags", [("think", "think"), ("a b",), ("",), ()])
def test_tags_that_cannot_be_told_apart_are_refused(tags):
    with pytest.raises((ConfigError, ValueError), match="tag"):
        value("", tags=tags)
