# SPDX-License-Identifier: Apache-2.0
"""What holds for every algorithm in the directory, whatever its options."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import drawn
import pytest
import torch
from drawn import NOT_A_NUMBER, Case, ask, require_close, tensors
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from m2flow.algorithms.base import Algorithm, Batch
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient
from m2flow.errors import LearnerError
from m2flow.registry import load, names

NAMES = [name for name in names("algorithms") if issubclass(load("algorithms", name), Algorithm)]
MADE_BY_ADVANTAGES = ("advantages", "returns", "weights")


def of_every_algorithm(**drawn_too: Any) -> Callable[[Any], Any]:
    """The test is called with the ``name`` of each algorithm and draws what it wants of it."""

    def decorate(test: Any) -> Any:
        few = settings(max_examples=5, deadline=None)
        return pytest.mark.parametrize("name", NAMES)(few(given(data=st.data(), **drawn_too)(test)))

    return decorate


def drawn_pair(data: st.DataObject, name: str, **options: Any) -> tuple[Algorithm, Case]:
    """An algorithm and a batch that holds what it needs and no more."""
    algorithm = data.draw(drawn.algorithms(name))
    return algorithm, drawn.only_needed(algorithm, data.draw(drawn.cases(**options)))


def with_rows(case: Case, change: Callable[[Tensor], Tensor]) -> Case:
    """``change`` of every tensor of batch and outputs."""
    batch = replace(case.batch, **{name: change(x) for name, x in tensors(case.batch).items()})
    return Case(batch=batch, outputs=replace(case.outputs, **{n: change(x) for n, x in tensors(case.outputs).items()}))


def made(batch: Batch) -> dict[str, Tensor]:
    """What ``advantages`` has added."""
    return {name: x for name, x in tensors(batch).items() if name in MADE_BY_ADVANTAGES}


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_varied_here(name: str) -> None:
    alone = [option for option, values in drawn.choices(load("algorithms", name).Config).items() if len(values) < 2]
    assert not alone, f"give further values of {alone} in drawn.FURTHER"


@of_every_algorithm()
def test_losses_sums_and_gradients_of_micro_batches_add_up_to_those_of_the_batch(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    batch = algorithm.advantages(case.batch)
    totals = drawn.totals_of(batch)
    whole = ask(algorithm, batch, case.outputs, totals=totals)
    part_of = data.draw(st.lists(st.integers(0, 2), min_size=len(batch.mask), max_size=len(batch.mask)), label="parts")
    sums = dict.fromkeys(whole.numbers, 0.0)
    gradients = {field: torch.zeros_like(x) for field, x in whole.gradients.items()}
    for part in set(part_of):
        rows = [row for row, own in enumerate(part_of) if own == part]
        found = ask(algorithm, batch, case.outputs, totals=totals, rows=rows)
        sums = {key: sums[key] + value for key, value in found.numbers.items()}
        for field, gradient in found.gradients.items():
            gradients[field][rows] = gradient
    require_close(sums, whole.numbers)
    require_close(gradients, whole.gradients)


@of_every_algorithm(extra=st.integers(1, 3))
def test_padding_changes_nothing_and_gets_no_gradient(name: str, data: Any, extra: int) -> None:
    algorithm, case = drawn_pair(data, name)
    width = case.batch.mask.shape[1]

    def padded(x: Tensor) -> Tensor:
        if x.dim() == 1:
            return x
        filler = False if x.dtype == torch.bool else NOT_A_NUMBER
        return torch.cat([x, x.new_full((len(x), extra), filler)], 1)

    wider = with_rows(case, padded)
    batch, wide = algorithm.advantages(case.batch), algorithm.advantages(wider.batch)
    assert all(not x[:, width:].any() for x in made(wide).values())
    require_close({k: x[:, :width] for k, x in made(wide).items()}, made(batch))
    wanted, found = ask(algorithm, batch, case.outputs), ask(algorithm, wide, wider.outputs)
    require_close(found.numbers, wanted.numbers)
    assert all(not x[:, width:].any() for x in found.gradients.values())
    require_close({k: x[:, :width] for k, x in found.gradients.items()}, wanted.gradients)


@of_every_algorithm()
def test_the_order_of_rows_changes_nothing(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    order = torch.tensor(data.draw(st.permutations(range(len(case.batch.mask))), label="order"))
    other = with_rows(case, lambda x: x[order])
    batch, shuffled = algorithm.advantages(case.batch), algorithm.advantages(other.batch)
    require_close(made(shuffled), {k: x[order] for k, x in made(batch).items()})
    wanted, found = ask(algorithm, batch, case.outputs), ask(algorithm, shuffled, other.outputs)
    require_close(found.numbers, wanted.numbers)
    require_close(found.gradients, {k: x[order] for k, x in wanted.gradients.items()})


@of_every_algorithm()
def test_what_stands_on_masked_positions_reaches_no_bit_of_a_result(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    mask, filler = case.batch.mask, data.draw(st.sampled_from([NOT_A_NUMBER, float("inf"), -1e9]), label="filler")

    def filled(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        return torch.where(mask if x.dim() == 2 else mask.any(1), x, filler)

    other = with_rows(case, filled)
    batch, dirty = algorithm.advantages(case.batch), algorithm.advantages(other.batch)
    assert all(not x[~mask].any() for x in made(dirty).values())
    assert all(torch.equal(x, made(batch)[k]) for k, x in made(dirty).items())
    # What the rules reject is masked from here on, in every field.
    after = with_rows(Case(batch=dirty, outputs=other.outputs), lambda x: _filled(x, dirty.mask, filler))
    wanted, found = ask(algorithm, batch, case.outputs), ask(algorithm, after.batch, after.outputs)
    assert found.numbers == wanted.numbers
    assert all(torch.equal(x, wanted.gradients[k]) for k, x in found.gradients.items())
    assert all(not x[~dirty.mask].any() for x in found.gradients.values())


def _filled(x: Tensor, mask: Tensor, filler: float) -> Tensor:
    return torch.where(mask, x, filler) if x.is_floating_point() and x.dim() == 2 else x


@of_every_algorithm()
def test_rows_without_a_counted_position_are_as_if_they_were_not_there(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    num, times = len(case.batch.mask), data.draw(st.integers(1, 3), label="rows added")

    def longer(x: Tensor) -> Tensor:
        added = x[torch.arange(times) % num]
        return torch.cat([x, torch.full_like(added, NOT_A_NUMBER) if x.is_floating_point() else added])

    other = with_rows(case, longer)
    masked = torch.cat([case.batch.mask, torch.zeros_like(other.batch.mask[num:])])
    # One of them is a group of its own.
    own = torch.where(torch.arange(num + times) == num, 99, other.batch.group_ids)
    other = replace(other, batch=replace(other.batch, mask=masked, group_ids=own))
    batch, more = algorithm.advantages(case.batch), algorithm.advantages(other.batch)
    assert all(not x[num:].any() for x in made(more).values()) and not more.mask[num:].any()
    require_close({k: x[:num] for k, x in made(more).items()}, made(batch))
    wanted, found = ask(algorithm, batch, case.outputs), ask(algorithm, more, other.outputs)
    require_close(found.numbers, wanted.numbers)
    assert all(not x[num:].any() for x in found.gradients.values())
    require_close({k: x[:num] for k, x in found.gradients.items()}, wanted.gradients)


@of_every_algorithm()
def test_a_batch_without_a_counted_position_has_a_loss_of_zero(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    batch = algorithm.advantages(replace(case.batch, mask=torch.zeros_like(case.batch.mask)))
    assert all(not x.any() for x in made(batch).values())
    found = ask(algorithm, batch, case.outputs)
    assert not any(found.numbers.values()) and all(not x.any() for x in found.gradients.values())


RELATIVE = [
    name for name in NAMES if getattr(load("algorithms", name), "advantages", None) is PolicyGradient.advantages
]
"""Those that define ``sample_advantages``: one advantage a sample, which compares it with its group."""
SCORES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0, 0.1, 1 / 3, -7e5]))


def equal_scores(algorithm: Algorithm, case: Case, *, score: float) -> Batch:
    """All samples score the same: full rows, no dense rewards, a policy that is its reference."""
    batch = drawn.only_needed(algorithm, case).batch
    old = case.batch.old_logprobs
    options = {"token_rewards": None, "reference_logprobs": None if batch.reference_logprobs is None else old}
    full, rewards = torch.ones_like(batch.mask), torch.full_like(batch.rewards, score)
    return replace(batch, mask=full, rewards=rewards, old_logprobs=old, **options)


@pytest.mark.parametrize("name", RELATIVE)
@given(data=st.data(), score=SCORES, dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=10, deadline=None)
def test_in_a_group_of_equal_scores_every_advantage_is_exactly_zero(
    name: str, data: Any, score: float, dtype: Any
) -> None:
    algorithm, case = data.draw(drawn.algorithms(name)), data.draw(drawn.cases(dtype=dtype))
    batch = equal_scores(algorithm, case, score=score)
    sizes = torch.bincount(batch.group_ids)[batch.group_ids]
    # Another group differs, so that the batch does.
    others = batch.group_ids == batch.group_ids[0]
    batch = replace(batch, rewards=torch.where(others, torch.arange(len(others)).to(dtype), batch.rewards))
    found = algorithm.advantages(batch).advantages
    assert found is not None and not found[~others & (sizes > 1)].any()
    assert found.isfinite().all()


@pytest.mark.parametrize("name", RELATIVE)
@given(data=st.data(), score=SCORES)
@settings(max_examples=10, deadline=None)
def test_a_group_of_one_gets_exactly_zero_or_what_the_option_says(name: str, data: Any, score: float) -> None:
    algorithm, case = data.draw(drawn.algorithms(name)), data.draw(drawn.cases())
    batch = equal_scores(algorithm, case, score=score)
    batch = replace(batch, group_ids=torch.arange(len(batch.mask)))
    found, higher = (algorithm.advantages(replace(batch, rewards=batch.rewards + more)) for more in (0, 1))
    assert found.advantages is not None and higher.advantages is not None
    assert found.advantages.isfinite().all()
    if "score" in vars(algorithm.config).values():
        assert (higher.advantages != found.advantages)[found.mask].all()
    else:
        assert not found.advantages.any() and not higher.advantages.any()


@of_every_algorithm()
def test_at_unchanged_weights_nothing_is_clipped_and_the_divergence_is_exactly_zero(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name, dtype=torch.float32)
    batch = algorithm.advantages(case.batch)
    assert batch.old_logprobs is not None
    outputs = replace(case.outputs, logprobs=batch.old_logprobs, values=case.batch.values)
    sums = ask(algorithm, batch, outputs).numbers
    watched = [key for key in sums if "clip_fraction" in key or key.endswith("approx_kl")]
    assert {"policy/clip_fraction", "policy/approx_kl"} <= set(watched)
    assert {key: sums[key] for key in watched} == dict.fromkeys(watched, 0.0)


@of_every_algorithm()
def test_advantages_read_nothing_that_is_for_the_loss_alone(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    assert algorithm.loss_only <= algorithm.needs
    blank = dict.fromkeys(algorithm.loss_only & drawn.FIELDS_OF_BATCH)
    require_close(made(algorithm.advantages(replace(case.batch, **blank))), made(algorithm.advantages(case.batch)))


@of_every_algorithm()
def test_what_is_not_for_the_loss_alone_is_read_by_the_advantages(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    for field in algorithm.needs - algorithm.loss_only:
        with pytest.raises(LearnerError, match="needs"):
            algorithm.advantages(replace(case.batch, **{field: None}))


@of_every_algorithm()
def test_a_quantity_that_is_needed_and_missing_is_an_error(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    assert algorithm.needs <= Algorithm.CAPABILITIES
    batch = algorithm.advantages(case.batch)
    for field in algorithm.needs & algorithm.loss_only & drawn.FIELDS_OF_BATCH:
        with pytest.raises(LearnerError, match="needs"):
            ask(algorithm, replace(batch, **{field: None}), case.outputs)
    for field in algorithm.needs & drawn.FIELDS_OF_OUTPUTS:
        with pytest.raises(LearnerError, match="needs"):
            ask(algorithm, batch, replace(case.outputs, **{field: None}))


@of_every_algorithm()
def test_a_quantity_that_is_not_needed_is_not_used(name: str, data: Any) -> None:
    algorithm, full = data.draw(drawn.algorithms(name)), data.draw(drawn.cases())
    case = drawn.only_needed(algorithm, full)
    batch, more = algorithm.advantages(case.batch), algorithm.advantages(full.batch)
    assert all(torch.equal(x, made(batch)[k]) for k, x in made(more).items())
    wanted, found = ask(algorithm, batch, case.outputs), ask(algorithm, more, full.outputs)
    assert {k: found.numbers[k] for k in wanted.numbers} == wanted.numbers
    assert all(torch.equal(found.gradients[k], x) for k, x in wanted.gradients.items())
    assert not any(x.any() for k, x in found.gradients.items() if k not in wanted.gradients)


@of_every_algorithm(dtype=st.sampled_from([torch.float32, torch.float64]))
def test_inputs_stay_as_they_are_and_answers_are_repeated(name: str, data: Any, dtype: Any) -> None:
    algorithm, case = drawn_pair(data, name, dtype=dtype)
    before = with_rows(case, Tensor.clone)
    batch = algorithm.advantages(case.batch)
    prepared = {k: x.clone() for k, x in tensors(batch).items()}
    first, second = (ask(algorithm, batch, case.outputs) for _ in range(2))
    assert first.numbers == second.numbers
    assert all(torch.equal(x, second.gradients[k]) for k, x in first.gradients.items())
    assert all(torch.equal(x, prepared[k]) for k, x in tensors(batch).items())
    again = algorithm.advantages(case.batch)
    assert all(torch.equal(x, tensors(again)[k]) for k, x in tensors(batch).items())
    for record, kept in ((case.batch, before.batch), (case.outputs, before.outputs)):
        assert all(torch.equal(x, tensors(kept)[k]) for k, x in tensors(record).items())
    assert {x.dtype for x in made(batch).values()} == {dtype}
    assert not any(x.requires_grad for x in made(batch).values())


@of_every_algorithm()
def test_a_response_that_was_cut_counts_as_any_other_or_is_left_out_alone(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name)
    ended = algorithm.advantages(replace(case.batch, truncated=torch.zeros_like(case.batch.truncated)))
    some = algorithm.advantages(case.batch)
    kept = ended.mask & some.mask
    assert torch.equal(some.mask[~case.batch.truncated], ended.mask[~case.batch.truncated])
    assert all(torch.equal(x[kept], made(ended)[k][kept]) for k, x in made(some).items())


@of_every_algorithm(rewards=st.lists(st.sampled_from([0.0, 1.0, 0.1, -3.5]), min_size=1))
def test_whether_a_group_is_kept_does_not_depend_on_the_order_of_samples(name: str, data: Any, rewards: Any) -> None:
    algorithm = data.draw(drawn.algorithms(name))
    shuffled = data.draw(st.permutations(rewards))
    assert algorithm.keep(torch.tensor(rewards)) is algorithm.keep(torch.tensor(shuffled))
    assert algorithm.max_resampling_rounds >= 0


UNBOUNDED = {"kl_clamp": "none"}
"""Options that ask for numbers without a bound."""


@of_every_algorithm()
def test_log_probs_that_differ_by_fifty_give_finite_numbers_in_single_precision(name: str, data: Any) -> None:
    algorithm, case = drawn_pair(data, name, dtype=torch.float32)
    assume(not UNBOUNDED.items() & vars(algorithm.config).items())
    signs = torch.randint(0, 2, (3, *case.batch.mask.shape), generator=torch.Generator().manual_seed(0)) * 100.0 - 50
    far = dict(zip(("old_logprobs", "reference_logprobs", "rollout_logprobs"), signs, strict=True))
    moved = {k: case.outputs.logprobs + gap for k, gap in far.items() if k in tensors(case.batch)}
    batch = algorithm.advantages(replace(case.batch, **moved))
    assert all(x.isfinite().all() for x in made(batch).values())
    drawn.require_finite(ask(algorithm, batch, case.outputs))
