# SPDX-License-Identifier: Apache-2.0
"""Log-probs and entropies that the learner computes, on logits that public implementations were given."""

from typing import Any

import torch
from vectors import cases, close, leaf, masked, real

from m2flow.algorithms.base import Totals
from m2flow.algorithms.formulas.aggregate import aggregate
from m2flow.trainers.packing.logprobs import chunked_logprobs


@cases("logprob_entropy")
def test_log_probs_entropies_and_gradients_equal_verl(given, expected, near):
    logits, shape = leaf(given["logits"]), real(given["labels"]).shape
    flat = logits.reshape(-1, logits.shape[-1])
    head, labels = torch.eye(logits.shape[-1], dtype=torch.float64), torch.tensor(given["labels"]).reshape(-1)
    options: dict[str, Any] = {"labels": labels, "temperature": given["temperature"], "entropies": True}
    logprobs, entropies = chunked_logprobs(flat, head, **options)
    assert entropies is not None
    close(logprobs.view(shape), expected["log_probs"], near)
    close(entropies.view(shape), expected["entropy"], near)
    for found, name in ((logprobs, "log_probs"), (entropies, "entropy")):
        (gradient,) = torch.autograd.grad(found.sum(), logits, retain_graph=True)
        close(gradient, expected[f"grad_logits_of_sum_{name}"], near)
    mask = masked(given)
    mean = aggregate(entropies.view(shape), mask, totals=Totals.of(mask, max_tokens=1), mode="token-mean")
    close(mean, expected["entropy_token_mean"], near)
