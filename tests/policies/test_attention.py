# SPDX-License-Identifier: Apache-2.0
"""The attention of packed rows asks the layout, and refuses what a layout cannot do."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from m2flow.errors import ModelError
from m2flow.policies.language.attention import attention
from m2flow.policies.language.probe import CausalLayout

MODULE: Any = SimpleNamespace(layer_idx=0)
QUERY = torch.tensor([[[[1.0], [2.0], [1.0]], [[0.0], [0.0], [0.0]]]])  # 2 heads, 3 tokens, 1 dimension
KEY = torch.tensor([[[[0.0], [1.0], [5.0]]]])  # 1 key head
VALUE = torch.tensor([[[[10.0], [20.0], [30.0]]]])


def test_two_packed_sequences_attend_as_worked_by_hand():
    out, _ = attention(MODULE, QUERY, KEY, VALUE, None, layout=CausalLayout((2, 1)), scaling=1.0)
    # Head 0: token 0 sees itself; token 1 has scores 0 and 2; token 2 is a sequence of its own. Head 1: equal scores.
    weight = torch.tensor(2.0).sigmoid().item()
    expected = torch.tensor([[10.0, 10.0], [10 + 10 * weight, 15.0], [30.0, 30.0]]).view(1, 3, 2, 1)
    torch.testing.assert_close(out, expected)


def test_without_scaling_scores_are_divided_by_the_root_of_the_dimension():
    query, key, value = (torch.randn(1, 1, 3, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    layout = CausalLayout((3,))
    plain, _ = attention(MODULE, query, key, value, None, layout=layout)
    scaled, _ = attention(MODULE, query, key, value, None, layout=layout, scaling=0.25)
    assert torch.equal(plain, scaled)


@pytest.mark.parametrize(
    "asked", [{"sliding_window": 4}, {"softcap": 50.0}, {"s_aux": torch.ones(2)}, {"dropout": 0.1}]
)
def test_what_a_layout_cannot_do_is_refused(asked: dict[str, Any]):
    with pytest.raises(ModelError, match=next(iter(asked))):
        attention(MODULE, QUERY, KEY, VALUE, None, layout=CausalLayout((3,)), scaling=1.0, **asked)


def test_a_forward_without_a_layout_is_refused():
    with pytest.raises(ModelError, match=r"call Llm.hidden"):
        attention(MODULE, QUERY, KEY, VALUE, None, scaling=1.0)
