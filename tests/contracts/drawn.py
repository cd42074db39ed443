# SPDX-License-Identifier: Apache-2.0
"""Random options and batches for any algorithm, and the questions that its laws ask of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from random import Random
from typing import Any, Literal, get_args, get_origin

import torch
from hypothesis import assume, note
from hypothesis import strategies as st
from torch import Tensor

from m2flow.algorithms.base import Algorithm, Batch, Outputs, Totals
from m2flow.config import Config
from m2flow.errors import ConfigError
from m2flow.registry import load

TRIED = (None, False, True, 0, 1, 0.05, 0.5, 1.5, 3)
"""Values that are tried for every option that takes them; those of a Literal besides."""
FURTHER = {
    "reject": [(), ("token_k3=0.05",), ("seq_mean_k1=0.8_1.2", "seq_max_k2=0.1")],
    "keep_range": [None, (0.2, 0.8)],
}
"""Values of options that take none of those."""
NOT_A_NUMBER = float("nan")


def _literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _literals(part)]


@cache
def choices(config: type[Config]) -> dict[str, list[Any]]:
    """Values of each option, the default first."""
    return {name: _choices(config, name) for name in config.model_fields}


def _choices(config: type[Config], name: str) -> list[Any]:
    found = [getattr(config(), name)]
    for value in (*TRIED, *_literals(config.model_fields[name].annotation), *FURTHER.get(name, [])):
        try:
            taken = getattr(config(**{name: value}), name)
        except ConfigError:
            continue
        if taken not in found:
            found.append(taken)
    return found


@st.composite
def algorithms(draw: st.DrawFn, name: str) -> Algorithm:
    """Algorithm ``name``, some of whose options have random values; those that contradict others keep their defaults.

    Two numbers make all of them: drawn one by one they would cost more time than the laws.
    """
    plugin: Any = load("algorithms", name)
    tried = choices(plugin.Config)
    changed, random = draw(st.integers(0, len(tried))), Random(draw(st.integers(0, 2**32 - 1)))
    wanted = {option: random.choice(tried[option]) for option in random.sample(sorted(tried), changed)}
    options: dict[str, Any] = {}
    for option in [option for option in tried if option in wanted]:
        given = {**options, option: wanted[option]}
        if not plugin.Config(**given).problems():
            options = given
    note(f"{name} with { ({k: v for k, v in options.items() if v != tried[k][0]}) }")
    return plugin(plugin.Config(**options))


@dataclass(frozen=True, kw_only=True)
class Case:
    """Everything that any algorithm may need, before ``advantages``."""

    batch: Batch
    outputs: Outputs


@st.composite
def cases(draw: st.DrawFn, *, dtype: torch.dtype = torch.float64, gap: float = 0.3) -> Case:
    """A few ragged groups in any order, some rows with holes in the mask or all masked; gaps between log-probs of about
    ``gap``."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3), label="group sizes")
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1), label="seed"))
    rows, width = sum(sizes), draw(st.integers(1, 6), label="longest response")
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    if draw(st.booleans(), label="holes"):
        mask &= torch.rand(mask.shape, generator=generator) < 0.7
    assume(mask.any())

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    now = -normal(rows, width).abs()
    old = now + gap * normal(rows, width)
    binary = draw(st.booleans(), label="binary rewards")
    ids = torch.repeat_interleave(torch.tensor([7, 2, 30][: len(sizes)]), torch.tensor(sizes))
    batch = Batch(
        mask=mask,
        rewards=(normal(rows) > 0).to(dtype) if binary else normal(rows),
        group_ids=ids[torch.randperm(rows, generator=generator)],
        rollout_logprobs=old + 0.5 * gap * normal(rows, width),
        truncated=torch.rand(rows, generator=generator) < 0.3,
        token_rewards=normal(rows, width) if draw(st.booleans(), label="dense rewards") else None,
        old_logprobs=old,
        reference_logprobs=old + gap * normal(rows, width),
        values=normal(rows, width),
    )
    return Case(
        batch=batch, outputs=Outputs(logprobs=now, entropies=normal(rows, width).abs(), values=normal(rows, width))
    )


def only_needed(algorithm: Algorithm, case: Case) -> Case:
    """``case`` without what the algorithm does not ask for."""
    unneeded = ALL_NEEDS - algorithm.needs
    batch = replace(case.batch, **{name: None for name in unneeded if name in FIELDS_OF_BATCH})
    return Case(batch=batch, outputs=replace(case.outputs, **{n: None for n in unneeded if n in FIELDS_OF_OUTPUTS}))


ALL_NEEDS = Algorithm.CAPABILITIES
FIELDS_OF_BATCH = {field.name for field in fields(Batch)}
FIELDS_OF_OUTPUTS = {field.name for field in fields(Outputs)}


def tensors(record: Any) -> dict[str, Tensor]:
    """The fields that are tensors."""
    return {name: value for name, value in vars(record).items() if isinstance(value, Tensor)}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an algorithm said about some rows."""

    numbers: dict[str, float]
    """Losses and sums."""
    gradients: dict[str, Tensor]
    """Of the outputs, by field."""


def totals_of(batch: Batch) -> Totals:
    """As a trainer counts."""
    return Totals.of(batch.mask, max_tokens=9)


def ask(
    algorithm: Algorithm,
    batch: Batch,
    outputs: Outputs,
    *,
    totals: Totals | None = None,
    rows: Sequence[int] | None = None,
) -> Found:
    """Loss, sums and gradients of ``rows`` (all of them) of a batch that has its advantages."""
    index = torch.arange(len(batch.mask)) if rows is None else torch.tensor(rows, dtype=torch.long)
    leaves = {name: x[index].clone().requires_grad_() for name, x in tensors(outputs).items()}
    loss = algorithm.loss(batch.rows(index), Outputs(**leaves), totals=totals or totals_of(batch))
    values = {} if loss.value is None else {"value": loss.value}
    parts = {"policy": loss.policy, **values}
    total = sum(parts.values(), torch.zeros((), dtype=loss.policy.dtype))
    total.backward()
    gradients = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
    return Found(numbers={**{k: v.item() for k, v in parts.items()}, **loss.sums}, gradients=gradients)


def require_close(ours: Any, wanted: Any, *, tolerance: float = 1e-9) -> None:
    """Equal tensors or numbers, by name; differences are measured against the largest number there is."""
    assert ours.keys() == wanted.keys()
    for name, value in wanted.items():
        one, other = torch.as_tensor(ours[name]).double(), torch.as_tensor(value).double()
        assert one.shape == other.shape, name
        scale = max(1.0, other.nan_to_num().abs().max().item()) if other.numel() else 1.0
        assert torch.allclose(one, other, rtol=0, atol=tolerance * scale, equal_nan=False), f"{name}: {one} not {other}"


def require_finite(found: Found) -> None:
    """No number and no gradient is infinite or NaN."""
    assert all(math.isfinite(value) for value in found.numbers.values()), found.numbers
    assert all(gradient.isfinite().all() for gradient in found.gradients.values()), found.gradients
