# SPDX-License-Identifier: Apache-2.0
"""Drawing tokens, against worked numbers."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from m2flow.engines.base import SamplingConfig
from m2flow.engines.decoding import draw as module
from m2flow.engines.decoding.draw import draw, uniforms

PROBABILITIES = torch.tensor([[0.5, 0.2, 0.2, 0.1]])


def sweep(probabilities: torch.Tensor, number: int = 10_000, **options: Any) -> tuple[list[float], list[float]]:
    """How often each token is drawn by evenly spread uniform numbers, and the probability that is recorded for it."""
    numbers = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    drawn = draw(probabilities.log().expand(number, -1), numbers, sampling=SamplingConfig(**options))
    size = probabilities.shape[1]
    shares = drawn.tokens.bincount(minlength=size) / number
    recorded = torch.zeros(size).scatter(0, drawn.tokens, drawn.sampled_logprobs.exp())
    return shares.tolist(), recorded.tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.2, 0.2, 0.1]),
        ({"top_k": 1}, [1, 0, 0, 0]),
        ({"top_k": 2}, [5 / 7, 2 / 7, 0, 0]),  # of equally likely tokens the one with the lower number
        ({"top_k": 3}, [5 / 9, 2 / 9, 2 / 9, 0]),
        ({"top_k": 9}, [0.5, 0.2, 0.2, 0.1]),
        ({"top_p": 0.45}, [1, 0, 0, 0]),
        ({"top_p": 0.6}, [5 / 7, 2 / 7, 0, 0]),
        ({"top_p": 0.85}, [5 / 9, 2 / 9, 2 / 9, 0]),
        ({"top_p": 0.95}, [0.5, 0.2, 0.2, 0.1]),
        ({"top_k": 3, "top_p": 0.6}, [5 / 7, 2 / 7, 0, 0]),  # top-p after top-k: 5/9 < 0.6 <= 7/9
        ({"top_k": 3, "top_p": 0.5}, [1, 0, 0, 0]),  # 0.5 <= 5/9
        ({"temperature": 0.5}, [25 / 34, 4 / 34, 4 / 34, 1 / 34]),
        ({"temperature": 0.5, "top_p": 0.8}, [25 / 29, 4 / 29, 0, 0]),  # 25/34 < 0.8 <= 29/34
    ],
)
def test_tokens_are_drawn_as_often_as_worked_out(options: dict[str, Any], expected: list[float]):
    shares, recorded = sweep(PROBABILITIES, **options)
    assert shares == pytest.approx(expected, abs=2e-4)
    assert recorded == pytest.approx(expected, abs=1e-6)


def test_temperature_two_takes_square_roots():
    roots = [math.sqrt(p) for p in (0.5, 0.2, 0.2, 0.1)]
    assert sweep(PROBABILITIES, temperature=2.0)[1] == pytest.approx([r / sum(roots) for r in roots], abs=1e-6)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.69, 1), (0.71, 2), (0.999999, 3)])
def test_the_uniform_number_inverts_the_cumulative_distribution(uniform: float, token: int):
    drawn = draw(PROBABILITIES.log(), torch.tensor([uniform], dtype=torch.float64), sampling=SamplingConfig())
    assert drawn.tokens.tolist() == [token]
    assert drawn.logprobs.item() == pytest.approx(math.log(PROBABILITIES[0, token].item()), abs=1e-6)
    assert drawn.entropies.item() == pytest.approx(-sum(p * math.log(p) for p in (0.5, 0.2, 0.2, 0.1)), abs=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"top_k": 40}, {"top_p": 0.7}, {"top_k": 90, "top_p": 0.8}]
)
def test_a_large_vocabulary_agrees_with_sorting_all_of_it(options: dict[str, Any]):
    sampling = SamplingConfig(**options)
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)) * 1.5
    numbers = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = draw(logits, numbers, sampling=sampling)
    ordered, tokens = (logits.double() / sampling.temperature).softmax(-1).sort(descending=True)
    if sampling.top_k:
        ordered[:, sampling.top_k :] = 0
        ordered /= ordered.sum(-1, keepdim=True)
    ordered[ordered.cumsum(-1) - ordered >= sampling.top_p] = 0
    ordered /= ordered.sum(-1, keepdim=True)
    expected = torch.zeros_like(ordered).scatter(1, tokens, ordered)
    assert drawn.tokens.tolist() == [int(n) for n in (expected.cumsum(-1) <= numbers[:, None]).sum(-1)]
    torch.testing.assert_close(drawn.sampled_logprobs.double(), expected.gather(1, drawn.tokens[:, None])[:, 0].log())
    torch.testing.assert_close(drawn.logprobs, logits.log_softmax(-1).gather(1, drawn.tokens[:, None])[:, 0])


def test_rows_in_parts_are_the_rows_together(monkeypatch: pytest.MonkeyPatch):
    logits = torch.randn(7, 300, generator=torch.Generator().manual_seed(0))
    numbers = torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = draw(logits, numbers, sampling=SamplingConfig())
    monkeypatch.setattr(module, "MAX_ELEMENTS", 600)
    parts = draw(logits, numbers, sampling=SamplingConfig())
    for name, values in vars(whole).items():
        assert torch.equal(values, getattr(parts, name))


def test_frequencies_of_seeded_draws_pass_a_chi_square_test():
    probabilities = torch.arange(1, 21, dtype=torch.float64) / 210
    number = 20_000
    numbers = [uniforms(seed=0, iteration=0, prompt_id=str(i), index=0, number=1)[0] for i in range(number)]
    drawn = draw(
        probabilities.log().float().expand(number, -1),
        torch.tensor(numbers, dtype=torch.float64),
        sampling=SamplingConfig(),
    )
    expected = probabilities.numpy() * number
    statistic = ((np.bincount(drawn.tokens.numpy(), minlength=20) - expected) ** 2 / expected).sum()
    assert statistic < 43.8  # exceeded once in a thousand with 19 degrees of freedom


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_token_without_probability_is_never_drawn(uniform: float):
    logits = torch.full((1, 600), -1e4)
    logits[0, 300:310] = torch.linspace(-1, 1, 10)
    drawn = draw(logits, torch.tensor([uniform], dtype=torch.float64), sampling=SamplingConfig())
    assert 300 <= drawn.tokens.item() < 310 and math.isfinite(drawn.logprobs.item())


def test_temperature_zero_takes_the_most_likely():
    drawn = draw(PROBABILITIES.log(), torch.tensor([0.99], dtype=torch.float64), sampling=SamplingConfig(temperature=0))
    assert drawn.tokens.tolist() == [0] and drawn.sampled_logprobs.tolist() == [0.0]
    assert drawn.logprobs.item() == pytest.approx(math.log(0.5), abs=1e-6)


def test_numbers_depend_on_seed_iteration_prompt_and_index_and_not_on_how_many_there_are():
    given = {"seed": 1, "iteration": 2, "prompt_id": "a", "index": 3, "number": 4}
    base = uniforms(**given).tolist()
    assert base == uniforms(**{**given, "number": 9}).tolist()[:4]
    for key, other in {"seed": 2, "iteration": 3, "prompt_id": "b", "index": 4}.items():
        assert uniforms(**{**given, key: other}).tolist() != base
