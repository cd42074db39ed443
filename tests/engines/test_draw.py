# SPDX-License-Identifier: Apache-2.0
"""Drawing tokens, against worked numbers."""

import math

import pytest
import torch

from m2flow.engines.base import SamplingConfig
from m2flow.engines.decoding.draw import draw, filtered, uniforms

PROBABILITIES = torch.tensor([[0.5, 0.2, 0.2, 0.1]])


def probabilities(**options):
    return filtered(PROBABILITIES.log(), SamplingConfig(**options)).exp()[0].tolist()


def test_top_k_keeps_the_most_likely_and_renormalises():
    assert probabilities(top_k=1) == pytest.approx([1, 0, 0, 0])
    assert sum(p > 0 for p in probabilities(top_k=2)) == 2


def test_top_p_keeps_the_smallest_set_that_reaches_the_sum():
    assert probabilities(top_p=0.5) == pytest.approx([1, 0, 0, 0])
    assert probabilities(top_p=0.6) == pytest.approx([5 / 7, 2 / 7, 0, 0])
    assert probabilities(top_p=0.9) == pytest.approx([5 / 9, 2 / 9, 2 / 9, 0])


def test_temperature_two_takes_square_roots():
    roots = [math.sqrt(p) for p in (0.5, 0.2, 0.2, 0.1)]
    assert probabilities(temperature=2.0) == pytest.approx([r / sum(roots) for r in roots])


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.69, 1), (0.71, 2), (0.999999, 3)])
def test_the_uniform_number_inverts_the_cumulative_distribution(uniform, token):
    drawn = draw(PROBABILITIES.log(), torch.tensor([uniform], dtype=torch.float64), SamplingConfig())
    assert drawn.tokens.tolist() == [token]
    assert drawn.logprobs.item() == pytest.approx(math.log(PROBABILITIES[0, token].item()), abs=1e-6)
    assert drawn.entropies.item() == pytest.approx(-sum(p * math.log(p) for p in (0.5, 0.2, 0.2, 0.1)), abs=1e-6)


def test_an_excluded_token_is_never_drawn():
    logits = PROBABILITIES.log().expand(1000, 4)
    numbers = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1]
    assert set(draw(logits, numbers, SamplingConfig(top_k=2)).tokens.tolist()) <= {0, 1, 2}
    assert draw(logits, numbers, SamplingConfig(top_k=1)).sampled_logprobs.eq(0).all()


def test_temperature_zero_takes_the_most_likely():
    drawn = draw(PROBABILITIES.log(), torch.tensor([0.99], dtype=torch.float64), SamplingConfig(temperature=0))
    assert drawn.tokens.tolist() == [0] and drawn.sampled_logprobs.tolist() == [0.0]


def test_numbers_depend_on_seed_iteration_prompt_and_index():
    given = {"seed": 1, "iteration": 2, "prompt_id": "a", "index": 3, "number": 4}
    base = uniforms(**given).tolist()
    assert base == uniforms(**given).tolist()
    for key, other in {"seed": 2, "iteration": 3, "prompt_id": "b", "index": 4}.items():
        assert uniforms(**{**given, key: other}).tolist() != base
