# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from m2flow.trainers.packing import logprobs
from m2flow.trainers.packing.logprobs import chunked_logprobs

PEERS = Path(__file__).parents[1] / "conformance" / "rl" / "rl_logprob_entropy.json"


def _dense(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, temperature: float) -> Any:
    logp = (hidden @ weight.T / temperature).log_softmax(-1)
    return logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(1)


def _case(tokens: int = 9, vocabulary: int = 1000, width: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, weight, torch.randint(0, vocabulary, (tokens,), generator=generator)


@pytest.mark.parametrize("case", json.loads(PEERS.read_text())["cases"], ids=lambda case: case["name"])
def test_log_probs_and_entropies_equal_those_of_verl_and_trl(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], {k: torch.tensor(v, dtype=torch.float64) for k, v in case["expected"].items()}
    logits = torch.tensor(inputs["logits"], dtype=torch.float64).flatten(0, 1).requires_grad_()
    labels = torch.tensor(inputs["labels"]).flatten()
    # An identity as the head makes the hidden states the logits.
    head = torch.eye(logits.shape[1], dtype=torch.float64)
    found, entropies = chunked_logprobs(logits, head, labels=labels, temperature=inputs["temperature"], entropies=True)
    assert entropies is not None
    pairs = {
        "log_probs": found,
        "entropy": entropies,
        "grad_logits_of_sum_log_probs": torch.autograd.grad(found.sum(), logits, retain_graph=True)[0],
        "grad_logits_of_sum_entropy": torch.autograd.grad(entropies.sum(), logits)[0],
    }
    for name, value in pairs.items():
        torch.testing.assert_close(value.flatten(), expected[name].flatten(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gradients_equal_those_of_the_whole_logits(
    entropy_weight: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "TILE_ELEMENTS", 1)  # tiles of 256: the last one is cut
    hidden, weight, labels = _case()
    factors = torch.linspace(-1, 2, len(labels), dtype=torch.float64)
    factors[3] = 0

    def loss(pair: Any) -> torch.Tensor:
        return (pair[0] * factors).sum() + entropy_weight * (pair[1] * factors.cos()).sum()

    ours = chunked_logprobs(hidden, weight, labels=labels, temperature=temperature, entropies=True)
    wanted = torch.autograd.grad(loss(_dense(hidden, weight, labels, temperature)), (hidden, weight))
    found = torch.autograd.grad(loss(ours) if entropy_weight else (ours[0] * factors).sum(), (hidden, weight))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_the_same() -> None:
    hidden, weight, labels = _case()
    chunked_logprobs(hidden, weight, labels=labels)[0].sum().backward()
    wanted, hidden.grad = hidden.grad, None
    frozen = weight.detach()
    chunked_logprobs(hidden, frozen, labels=labels)[0].sum().backward()
    assert frozen.grad is None
    assert wanted is not None and hidden.grad is not None and torch.equal(hidden.grad, wanted)


def test_bfloat16_gives_float32_log_probs_and_bfloat16_gradients() -> None:
    hidden, weight, labels = (x.to(torch.bfloat16) if x.is_floating_point() else x for x in _case())
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    found, _ = chunked_logprobs(hidden, weight, labels=labels)
    wanted, _ = _dense(hidden.double(), weight.double(), labels, 1.0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, atol=0.05, rtol=0.01)
    found.sum().backward()
    exact = torch.autograd.grad(wanted.sum(), (hidden, weight))
    torch.testing.assert_close((hidden.grad, weight.grad), exact, atol=0.1, rtol=0.05)


class _Largest(TorchDispatchMode):
    """Remembers the size of the largest floating-point tensor that was made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            self.numel = max(self.numel, out.numel())
        return out


def test_the_whole_of_the_logits_is_never_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "TILE_ELEMENTS", 2**14)
    hidden, weight, labels = _case(tokens=64, vocabulary=5000)
    with _Largest() as largest:
        found, entropies = chunked_logprobs(hidden, weight, labels=labels, entropies=True)
        assert entropies is not None
        (found.sum() + entropies.sum()).backward()
    assert largest.numel == weight.numel() < 64 * 5000 / 8
