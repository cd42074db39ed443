# SPDX-License-Identifier: Apache-2.0
"""Values that public implementations gave (tests/conformance/rl), and how an algorithm is asked for its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from m2flow.algorithms.base import Algorithm, Batch, Loss, Outputs, Totals
from m2flow.algorithms.formulas.masked import required

FOLDER = Path(__file__).parents[1] / "conformance" / "rl"


def cases(name: str, *, having: str = "") -> Any:
    """One parameter per case of a file (that has this input): inputs, expected values, tolerances."""
    read = json.loads((FOLDER / f"rl_{name}.json").read_text())
    near = {"rtol": read["rtol"], "atol": read["atol"]}
    chosen = [c for c in read["cases"] if not having or having in c["inputs"]]
    found = [pytest.param(c["inputs"], c["expected"], near, id=c["name"]) for c in chosen]
    return pytest.mark.parametrize(("given", "expected", "near"), found)


def real(x: Any) -> Tensor:
    """A tensor of doubles."""
    return torch.tensor(x, dtype=torch.float64)


def leaf(x: Any) -> Tensor:
    """A tensor of doubles whose gradient is asked for."""
    return real(x).requires_grad_()


def close(got: Any, expected: Any, near: Any) -> None:
    """Fail unless equal within the file's tolerances."""
    got = got.detach().double() if isinstance(got, Tensor) else real(got)
    torch.testing.assert_close(got, real(expected), **near)


def masked(given: dict[str, Any]) -> Tensor:
    """The case's mask."""
    return real(given["mask"]) > 0


def batch_of_rewards(given: dict[str, Any]) -> Batch:
    """The case's token rewards, summed up over all positions as verl does."""
    mask, rewards = masked(given), real(given["token_rewards"])
    return batch_of(mask, rewards=rewards.sum(1), group_ids=torch.tensor(given.get("group_ids", [0] * len(mask))))


def batch_of(mask: Tensor, **fields: Any) -> Batch:
    """A batch whose other fields are empty."""
    rows = mask.shape[0]
    blank = {
        "rewards": torch.zeros(rows, dtype=torch.float64),
        "group_ids": torch.zeros(rows, dtype=torch.long),
        "rollout_logprobs": torch.zeros(mask.shape, dtype=torch.float64),
        "truncated": torch.zeros(rows, dtype=torch.bool),
    }
    return Batch(mask=mask, **{**blank, **fields})


def advantages_of(algorithm: Algorithm, batch: Batch) -> Tensor:
    """What the algorithm makes of ``batch``."""
    return required(algorithm.advantages(batch).advantages)


def totals_of(given: dict[str, Any], mask: Tensor) -> Totals:
    """Counts that the case divides by: its own, or those of a larger batch that it is a part of."""
    longest = given.get("loss_scale_factor") or mask.shape[1]
    own = Totals.of(mask, max_tokens=longest)
    return Totals(
        num_tokens=given.get("batch_num_tokens", own.num_tokens),
        num_sequences=given.get("global_batch_size", own.num_sequences),
        max_tokens=longest,
    )


def loss_of(algorithm: Algorithm, given: dict[str, Any], *, totals: Totals | None = None) -> tuple[Loss, Tensor]:
    """The algorithm's loss, and its gradient by the log-probs of which the masked ones are NaN."""
    mask = masked(given)
    x = torch.where(mask, real(given["log_prob"]), torch.nan).requires_grad_()
    weights, reference = given.get("rollout_is_weights"), given.get("ref_log_prob")
    advantages = real(given["advantages"])
    batch = batch_of(
        mask,
        old_logprobs=torch.where(mask, real(given["old_log_prob"]), torch.nan),
        advantages=torch.where(mask, advantages if advantages.dim() == 2 else advantages[:, None], torch.nan),
        weights=None if weights is None else real(weights),
        reference_logprobs=None if reference is None else real(reference),
    )
    loss = algorithm.loss(batch, Outputs(logprobs=x), totals=totals or totals_of(given, mask))
    loss.policy.backward()
    return loss, required(x.grad)
