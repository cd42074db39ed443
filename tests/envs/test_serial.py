# SPDX-License-Identifier: Apache-2.0
"""Autoreset, counting and replay, on the point that is pushed to a goal and on a counter whose numbers are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from m2flow.config import Config
from m2flow.envs.base import Env, Observations, Outcome
from m2flow.envs.stepping.episodes import episode_seed
from m2flow.envs.stepping.serial import SerialStepper
from m2flow.envs.toy import Toy
from m2flow.errors import CheckpointError, SimulatorError
from m2flow.spec import Interface, Spec


class Counter(Env):
    """Counts its ticks; row r terminates after r + 2 ticks; reward is the count; solved at exactly two."""

    class Config(Config):
        """No options."""

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        self.count = np.zeros(num_rows, np.int64)
        self.seeds = np.zeros(num_rows, np.int64)

    @property
    def interface(self) -> Interface:
        return Interface(
            observations=(Spec(name="count", shape=(), dtype="int64"),),
            action=Spec(name="choice", shape=(), dtype="int64", low=0, high=3),
        )

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Observations:
        self.count[list(rows)], self.seeds[list(rows)] = 0, seeds
        return {"count": self.count[list(rows)]}

    def step(self, actions: np.ndarray) -> Outcome:
        self.count += 1
        return Outcome(
            observations={"count": self.count},
            rewards=self.count.astype(np.float32),
            terminated=self.count >= np.arange(self.num_rows) + 2,
            truncated=np.zeros(self.num_rows, bool),
            success=self.count == 2,
        )

    def render(self, row: int) -> np.ndarray:
        return np.full((2, 2, 3), row, np.uint8)

    def close(self) -> None:
        self.count = np.zeros(0, np.int64)


def counter(num_rows: int = 3, **options: Any) -> SerialStepper:
    return SerialStepper(lambda rows: Counter(Counter.Config(), rows), num_rows=num_rows, **options)


def toy(num_rows: int = 6, *, parts: int = 1, **options: Any) -> SerialStepper:
    config = Toy.Config(max_episode_ticks=7)
    return SerialStepper(lambda rows: Toy(config, rows), num_rows=num_rows, num_parts=parts, **options)


def pushes(ticks: int, rows: int = 6) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (ticks, rows, 2)).astype(np.float32)


def run(stepper: SerialStepper, actions: np.ndarray) -> list[np.ndarray]:
    """Positions of all rows after each tick."""
    size, seen = stepper.num_rows // stepper.num_parts, []
    for now in actions:
        for part in range(stepper.num_parts):
            stepper.send(part, now[part * size : (part + 1) * size])
        ticks = [stepper.receive(part) for part in range(stepper.num_parts)]
        seen.append(np.concatenate([tick.observations["position"] for tick in ticks]))
    return seen


def test_an_episode_that_ends_gives_its_last_observation_and_the_next_ones_first():
    stepper = counter()
    np.testing.assert_array_equal(stepper.reset(0)[0]["count"], [0, 0, 0])
    for _ in range(2):
        stepper.send(0, np.zeros(3, np.int64))
        tick = stepper.receive(0)
    np.testing.assert_array_equal(tick.ended, [0])
    np.testing.assert_array_equal(tick.final_observations["count"], [2])
    np.testing.assert_array_equal(tick.observations["count"], [0, 2, 2])
    np.testing.assert_array_equal(tick.terminated, [True, False, False])


def test_an_episodes_reward_length_and_success_are_its_own():
    stepper, episodes = counter(), []
    stepper.reset(0)
    for _ in range(6):
        stepper.send(0, np.zeros(3, np.int64))
        episodes += stepper.receive(0).episodes
    # Rows 0, 1, 2 last 2, 3, 4 ticks: rewards 1+2, 1+2+3, 1+2+3+4; at two ticks all are solved for a moment.
    found = [(e.row, e.num_ticks, e.total_reward, e.success_once, e.success_at_end) for e in episodes]
    one, two, three = (0, 2, 3.0, True, True), (1, 3, 6.0, True, False), (2, 4, 10.0, True, False)
    assert found == [one, two, one, three, one, two]
    assert [e.seed for e in episodes if e.row == 0] == [episode_seed(0, group=0, number=number) for number in range(3)]


def test_what_a_row_sees_does_not_depend_on_how_rows_are_cut_into_parts():
    actions, steppers = pushes(20), [toy(parts=parts) for parts in (1, 2, 6)]
    begins = [np.concatenate([part["position"] for part in stepper.reset(0)]) for stepper in steppers]
    runs = [run(stepper, actions) for stepper in steppers]
    for begin, other in zip(begins[1:], runs[1:], strict=True):
        np.testing.assert_array_equal(begins[0], begin)
        np.testing.assert_array_equal(runs[0], other)


def test_other_seeds_of_a_run_other_episodes():
    assert not np.array_equal(toy().reset(0)[0]["position"], toy().reset(1)[0]["position"])


@pytest.mark.parametrize("ticks", [0, 3, 7, 11])
def test_a_loaded_state_goes_on_bit_for_bit_with_episodes_of_any_age(ticks: int):
    actions, first = pushes(30), toy(parts=2)
    first.reset(0)
    run(first, actions[:ticks])
    state = first.state()
    wanted = run(first, actions[ticks:])
    again = toy(parts=2)
    again.reset(0)
    run(again, actions[:5])
    observations = again.load_state(state)
    if ticks == 0:
        np.testing.assert_array_equal(observations[0]["position"], toy(parts=2).reset(0)[0]["position"])
    np.testing.assert_array_equal(run(again, actions[ticks:]), wanted)


def test_counts_of_unfinished_episodes_go_on_too():
    first, second, found = counter(), counter(), []
    first.reset(0)
    for _ in range(5):
        first.send(0, np.zeros(3, np.int64))
        first.receive(0)
    second.load_state(first.state())
    for stepper in (first, second):
        episodes = []
        for _ in range(4):
            stepper.send(0, np.zeros(3, np.int64))
            episodes += stepper.receive(0).episodes
        found.append(episodes)
    # Ticks 6 to 9: row 0 ends at 6 and 8, row 1 at 6 and 9, row 2 at 8.
    assert found[0] == found[1] and [e.row for e in found[0]] == [0, 1, 0, 2, 1]


def test_actions_of_ended_episodes_are_not_kept_for_ever():
    stepper = toy()
    stepper.reset(0)
    run(stepper, pushes(200))
    assert sum(len(part) for part in stepper.state()["actions"]) <= 6 * 7
    assert len(stepper._parts[0]._actions) <= 21


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (np.zeros((5, 2)), r"shape \(5, 2\), 'push' of 6 rows has \(6, 2\)"),
        (np.full((6, 2), 1.01), r"\[1.01, 1.01\] of row 0 is not within the limits -1.0 to 1.0"),
        (np.full((6, 2), np.nan), r"\[nan, nan\] of row 0"),
    ],
)
def test_an_action_that_is_not_as_the_interface_says_is_refused_and_costs_no_tick(actions: np.ndarray, said: str):
    stepper = toy()
    stepper.reset(0)
    with pytest.raises(SimulatorError, match=said):
        stepper.send(0, actions)
    stepper.send(0, np.zeros((6, 2)))
    stepper.receive(0)


def test_a_discrete_action_is_a_whole_number():
    stepper = counter()
    stepper.reset(0)
    with pytest.raises(SimulatorError, match="float64, 'choice' takes whole numbers"):
        stepper.send(0, np.zeros(3))


def test_sending_twice_receiving_nothing_and_saving_in_flight_are_refused():
    stepper = toy(parts=2)
    with pytest.raises(SimulatorError, match="reset before the state is taken"):
        stepper.state()
    stepper.reset(0)
    with pytest.raises(SimulatorError, match="nothing was sent to part 1"):
        stepper.receive(1)
    stepper.send(0, np.zeros((3, 2)))
    with pytest.raises(SimulatorError, match="part 0 is in flight already"):
        stepper.send(0, np.zeros((3, 2)))
    with pytest.raises(SimulatorError, match=r"parts \[0\] are in flight"):
        stepper.state()


def test_rows_that_cannot_be_cut_or_held_are_refused():
    with pytest.raises(SimulatorError, match="6 rows cannot be cut into 4"):
        toy(parts=4)

    class Single(Counter):
        max_rows = 1

    with pytest.raises(SimulatorError, match="holds at most 1 rows in one process, 2 were asked for"):
        SerialStepper(lambda rows: Single(Single.Config(), rows), num_rows=2, num_parts=2)


def test_a_state_of_other_rows_other_groups_or_another_environment_is_refused():
    stepper = toy()
    stepper.reset(0)
    with pytest.raises(CheckpointError, match="toy in 6 rows in groups of 1, here is toy in 6 rows in groups of 2"):
        toy(group_size=2).load_state(stepper.state())
    with pytest.raises(CheckpointError, match="here is toy in 12 rows"):
        toy(12).load_state(stepper.state())
    with pytest.raises(CheckpointError, match="toy in 6 rows"):
        counter(6).load_state(stepper.state())


def test_a_state_goes_on_in_other_parts_unless_they_are_at_different_ticks():
    actions, first, again = pushes(30), toy(), toy(parts=3)
    first.reset(0)
    run(first, actions[:11])
    again.load_state(first.state())
    np.testing.assert_array_equal(run(again, actions[11:]), run(first, actions[11:]))
    again.send(0, actions[0][:2])
    again.receive(0)
    with pytest.raises(CheckpointError, match=r"\[31, 30, 30\] ticks, which cannot be cut into 1 parts: resume with 3"):
        toy().load_state(again.state())


def test_a_simulator_that_does_not_repeat_itself_is_found_in_its_replay():
    stepper = counter()
    stepper.reset(0)
    state = stepper.state()
    state["actions"] = [np.zeros(4, np.int64)] * 3
    with pytest.raises(CheckpointError, match="does not repeat itself"):
        counter().load_state(state)


def test_a_row_is_drawn_by_its_part_and_closing_twice_is_closing_once():
    stepper = counter(4, num_parts=2)
    assert stepper.render(3)[0, 0, 0] == 1
    stepper.close()
    stepper.close()
