# SPDX-License-Identifier: Apache-2.0
"""Updates on one, two and four ranks against those of one process."""

import math
from typing import Any

import fsdp_ranks
import pytest
import torch
from fsdp_ranks import CASES, NUM_RANKS, SAVED, make_groups, make_learner
from hypothesis import given, settings
from hypothesis import strategies as st

from m2flow.errors import CheckpointError, LearnerError
from m2flow.trainers.packing.cut import Sizes, cut
from m2flow.trainers.sharding import shards
from m2flow.trainers.sharding.deal import balance, deal

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def straight() -> dict[str, Any]:
    """A state of ``local``, and the metrics of the update after it."""
    learner = make_learner(SAVED, "local")
    learner.update(make_groups())
    state = fsdp_ranks.copied(learner.state())
    return {"state": state, **fsdp_ranks.next_update(learner)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, straight: dict[str, Any]) -> dict[Any, Any]:
    """What each rank found, by number of ranks, rank and name."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = fsdp_ranks.start(folder, straight["state"])
    try:
        out = {(0, 0, name): fsdp_ranks.run_case(case, "local") for name, case in CASES.items()}
        for rank, process in enumerate(processes):
            process.join(timeout=200)
            assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"
            out |= torch.load(folder / str(rank), weights_only=False)
    finally:
        for process in processes:
            process.kill()
    return {**out, "folder": folder}


def _apart(ours: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The largest difference, as a part of the largest absolute value or of 1."""
    assert ours.keys() == wanted.keys()
    pairs = [(torch.as_tensor(ours[k]), torch.as_tensor(wanted[k])) for k in wanted]
    scale = max([1.0, *(float(b.abs().max()) for _, b in pairs)])
    return max([0.0, *(float((a - b).abs().max()) for a, b in pairs)]) / scale


def _compared(metrics: dict[str, float]) -> dict[str, float]:
    """Without what only many ranks have; and one process looks at no further rows after a loss that is no number."""
    left_out = ("learner/balance", "rollout/") if "learner/nonfinite_steps" in metrics else ("learner/balance",)
    return {name: number for name, number in metrics.items() if not name.startswith(left_out)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_losses_gradients_and_weights_are_those_of_one_process(
    num_ranks: int, name: str, found: dict[Any, Any]
) -> None:
    wanted, ours = found[0, 0, name], [found[num_ranks, rank, name] for rank in range(num_ranks)]
    for update, metrics in enumerate(ours[0]["metrics"]):
        assert all(other["metrics"][update] == metrics for other in ours)
        assert _apart(_compared(metrics), _compared(wanted["metrics"][update])) < TOLERANCE
    together = {k: torch.cat([rank["gradients"][k] for rank in ours]) for k in ours[0]["gradients"]}
    assert _apart(together, wanted["gradients"]) < TOLERANCE
    assert _apart(ours[-1]["weights"], wanted["weights"]) < TOLERANCE


def test_the_cases_meet_what_they_are_there_for(found: dict[Any, Any]) -> None:
    metrics = {name: found[4, 0, name]["metrics"][0] for name in CASES}
    assert metrics["untied"]["learner/stopped_early"] == 1 and metrics["untied"]["learner/steps"] < 3
    assert metrics["poisoned"]["learner/nonfinite_steps"] == 1 and metrics["poisoned"]["learner/steps"] == 0
    one_sided = next(name for name in CASES if "none" in name)
    # Three groups in a single micro-batch: three ranks of four only keep company.
    assert metrics[one_sided]["learner/balance"] == 0.25
    assert all("lora" in name for name in found[4, 0, "adapters, and the base model as reference"]["weights"])
    # Gradients that are not clipped show a wrong scale that Adam and clipping would hide.
    assert metrics[one_sided]["policy/grad_norm"] > 1.5


def test_a_loss_that_is_no_number_is_an_error_on_every_rank_that_names_the_samples(found: dict[Any, Any]) -> None:
    (said,) = {found[4, rank, "refused"] for rank in range(4)}
    assert "comes from sample 1 of prompt 'p0', sample 1 of prompt 'p1' (2 samples in all)" in said


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_a_checkpoint_of_four_ranks_goes_on_the_same_at_any_number_of_ranks(
    num_ranks: int, found: dict[Any, Any]
) -> None:
    wanted = found[4, 0, "saved"]["next"]
    for rank in range(num_ranks):
        ours = found[num_ranks, rank, "loaded"]
        # Losses and old log-probs of the first step are made of equal weights in equal micro-batches: equal bits.
        assert ours["first"] == found[4, 0, "saved"]["first"]
        assert _apart(_compared(ours["next"]), _compared(wanted)) < TOLERANCE
        assert torch.equal(ours["random"], found[4, rank, "saved"]["random"])


def test_a_checkpoint_of_four_ranks_is_there_when_all_parts_are_and_goes_on_in_one_process(
    found: dict[Any, Any],
) -> None:
    saved = found[4, 0, "saved"]
    assert saved["steps"] == [[], [3]]
    alone = fsdp_ranks.load("local", found["folder"])
    assert alone["first"] == saved["first"]
    assert _apart(_compared(alone["next"]), _compared(saved["next"])) < TOLERANCE


def test_a_state_of_one_process_goes_on_on_four_ranks(found: dict[Any, Any], straight: dict[str, Any]) -> None:
    for rank in range(4):
        ours = found[4, rank, "whole"]
        assert ours["first"] == straight["first"]
        assert _apart(_compared(ours["next"]), _compared(straight["next"])) < TOLERANCE


def test_without_a_group_of_ranks_the_error_says_what_to_do() -> None:
    with pytest.raises(LearnerError, match="joined a group"):
        _ = make_learner(CASES["grpo"], "fsdp").models


ROWS = st.integers(1, 40)


@given(num_rows=ROWS, width=st.integers(1, 3), saved=st.integers(1, 6), loaded=st.integers(1, 6))
def test_parts_of_any_number_of_ranks_are_put_together_for_any_other(
    num_rows: int, width: int, saved: int, loaded: int
) -> None:
    whole = torch.arange(num_rows * width).view(num_rows, width)

    def part(rank: int, num_ranks: int) -> dict[str, Any]:
        rows = shards.own_rows(num_rows, rank, num_ranks=num_ranks)
        return {"w": {"a": shards.mark(whole[rows.start : rows.stop], rows.start, shape=whole.shape)}, "steps": 3}

    parts = [part(rank, saved) for rank in range(saved)]
    states = [shards.assemble(reversed(parts), rank, num_ranks=loaded) for rank in range(loaded)]
    assert all(state["steps"] == 3 for state in states)
    rows = [shards.own_rows(num_rows, rank, num_ranks=loaded) for rank in range(loaded)]
    found = [shards.rows_of(s["w"]["a"], r, shape=whole.shape) for s, r in zip(states, rows, strict=True)]
    assert torch.equal(torch.cat(found), whole)
    needed = [p for p in parts if len(p["w"]["a"]["shard"])]
    with pytest.raises(CheckpointError, match=r"not whole \(/w/a\)|give the states"):
        shards.assemble(needed[1:])


def test_rows_of_another_tensor_or_of_others_are_refused() -> None:
    held = shards.mark(torch.zeros(2, 3), 2, shape=(7, 3))
    assert shards.rows_of(held, range(3, 4), shape=(7, 3)).shape == (1, 3)
    for wanted, shape in ((range(2), (7, 3)), (range(2, 4), (7, 4))):
        with pytest.raises(CheckpointError, match=r"has rows 2 to 4 of a tensor of shape \[7, 3\]"):
            shards.rows_of(held, wanted, shape=shape)


class _Work:
    """Rows of these many tokens."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def tokens(self, rows: list[int]) -> int:
        return sum(self.sizes[row] for row in rows)


@given(sizes=st.lists(st.integers(1, 99), min_size=1, max_size=20), num_ranks=st.integers(1, 5))
def test_every_micro_batch_is_computed_once_in_equally_many_turns(sizes: list[int], num_ranks: int) -> None:
    work: Any = _Work(sizes)
    minibatch = [torch.tensor([row]) for row in range(len(sizes))]
    turns = [deal(work, minibatch, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    assert {len(own) for own in turns} == {math.ceil(len(sizes) / num_ranks)}
    assert sorted(t.index for own in turns for t in own if t.index is not None) == list(range(len(sizes)))
    assert all(sizes[int(t.rows)] == min(sizes) for own in turns for t in own if t.index is None)
    longest = [max(sizes[int(t.rows)] for t in at_once) for at_once in zip(*turns, strict=True)]
    assert balance(work, minibatch, num_ranks=num_ranks) == pytest.approx(sum(sizes) / (num_ranks * sum(longest)))


def test_large_micro_batches_meet_in_one_turn() -> None:
    work: Any = _Work([10, 90, 11, 91])
    minibatch = [torch.tensor([row]) for row in range(4)]
    turns = [[t.index for t in deal(work, minibatch, rank=rank, num_ranks=2)] for rank in range(2)]
    # Largest first, and who had the larger one gets the smaller one next.
    assert turns == [[3, 0], [1, 2]]
    assert balance(work, minibatch, num_ranks=2) == pytest.approx(202 / (2 * (91 + 11)))


@given(
    lengths=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=6),
    multiple=st.integers(1, 9),
)
@settings(max_examples=50)
def test_the_number_of_micro_batches_is_a_multiple_where_there_are_enough_samples(
    lengths: list[list[int]], multiple: int
) -> None:
    groups = [i for i, responses in enumerate(lengths) for _ in responses]
    sizes = Sizes(groups, [5] * len(groups), [n for responses in lengths for n in responses])
    cuts = cut(range(len(groups)), sizes, bound=60, multiple=multiple)
    assert sorted(row for rows in cuts for row in rows) == list(range(len(groups)))
    assert all(sizes.total(rows) <= 60 for rows in cuts)
    assert len(cuts) % multiple == 0 or len(cuts) == len(groups)
