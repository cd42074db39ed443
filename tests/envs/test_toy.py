# SPDX-License-Identifier: Apache-2.0
"""The point on a plane: its physics by hand, and that equal seeds begin equal episodes."""

import numpy as np

from m2flow.envs.toy import Toy


def _toy(num_rows: int = 2, **options: object) -> Toy:
    return Toy(Toy.Config.model_validate(options), num_rows)


def test_a_full_push_from_rest_moves_the_point_by_four_hundredths_of_a_metre_in_the_first_tick():
    env = _toy(1)
    before = env.reset([0], [3])["position"]
    outcome = env.step(np.array([[1.0, 0.0]]))
    # v = 0.1 * 4 * 1 = 0.4 m/s; x = 0.1 * 0.4 = 0.04 m.
    np.testing.assert_allclose(outcome.observations["position"] - before, [[0.04, 0.0]], atol=1e-6)
    np.testing.assert_allclose(outcome.observations["velocity"], [[0.4, 0.0]], atol=1e-6)


def test_an_episode_depends_on_its_seed_and_not_on_its_row_or_on_what_ran_before():
    env = _toy(2)
    first = env.reset([0, 1], [7, 8])["position"]
    env.step(np.ones((2, 2)))
    again = env.reset([1], [7])["position"]
    np.testing.assert_array_equal(first[0], again[0])


def test_pushing_towards_the_goal_terminates_with_success_and_idling_truncates():
    env = _toy(2, max_episode_ticks=40)
    seen = env.reset([0, 1], [0, 0])
    ended = np.zeros(2, bool)
    for _ in range(40):
        outcome = env.step(np.stack([np.clip(-seen["position"][0], -1, 1), np.zeros(2)]))
        seen = outcome.observations
        if not ended[0] and outcome.terminated[0]:
            assert outcome.success is not None and outcome.success[0] and not outcome.truncated[0]
            ended[0] = True
    assert ended[0] and outcome.truncated[1] and not outcome.terminated[1]
