# SPDX-License-Identifier: Apache-2.0
"""Distributions over actions: log-probs that integrate to one, draws that follow them, limits that are kept."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from m2flow.errors import ModelError
from m2flow.policies.control.heads import Choices, Gaussian
from m2flow.spec import Spec

ARM = Spec(name="arm", shape=(2,), low=(-1.0, 2.0), high=(3.0, 6.0))


def gaussian(spec: Spec = ARM, **options: Any) -> Gaussian:
    return Gaussian(spec, **{"std": "free", "initial_log_std": -0.5, "squash": False, **options})


def test_a_gaussians_logprob_and_entropy_are_those_of_the_density() -> None:
    head, outputs, actions = gaussian(), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]])
    # At the mean each of the two dimensions has log density -log std - log(2 pi) / 2.
    assert head.logprobs(outputs, actions).item() == pytest.approx(2 * (0.5 - 0.5 * math.log(2 * math.pi)))
    assert head.entropies(outputs, actions).item() == pytest.approx(2 * (-0.5 + 0.5 + 0.5 * math.log(2 * math.pi)))


@pytest.mark.parametrize("std", ["free", "state"])
def test_a_squashed_density_integrates_to_one_between_the_limits(std: Any) -> None:
    spec = Spec(name="push", shape=(1,), low=-1.0, high=1.0)
    head = gaussian(spec, std=std, squash=True)
    inside = torch.linspace(-0.999999, 0.999999, 200001)[:, None]
    outputs = torch.zeros(len(inside), head.num_outputs) + 0.3
    density = head.logprobs(outputs, inside.atanh()).exp()
    assert torch.trapezoid(density, inside[:, 0]).item() == pytest.approx(1, abs=1e-3)


def test_noise_through_a_head_follows_its_distribution() -> None:
    rng, num = np.random.default_rng(0), 20000
    choices = Choices(Spec(name="choice", shape=(), dtype="int64", low=0, high=2))
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(num, 3)
    drawn = choices.draw(logits, torch.from_numpy(choices.noise(rng, num)))
    np.testing.assert_allclose(np.bincount(drawn.numpy()) / num, [0.2, 0.3, 0.5], atol=0.02)
    head = gaussian()
    pushed = head.draw(torch.ones(num, 2), torch.from_numpy(head.noise(rng, num)))
    assert pushed.mean().item() == pytest.approx(1, abs=0.02)
    assert pushed.std().item() == pytest.approx(math.exp(-0.5), abs=0.02)


def test_a_choices_logprobs_and_entropies_are_those_of_the_softmax() -> None:
    head = Choices(Spec(name="choice", shape=(), dtype="int64", low=0, high=1))
    logits = torch.tensor([[math.log(0.25), math.log(0.75)]])
    assert head.logprobs(logits, torch.tensor([1])).item() == pytest.approx(math.log(0.75))
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert head.entropies(logits, torch.tensor([1])).item() == pytest.approx(entropy)
    assert head.draw(logits, None).tolist() == [1]


@pytest.mark.parametrize("squash", [False, True])
def test_an_environment_is_given_what_is_within_its_limits(squash: bool) -> None:
    head = gaussian(squash=squash)
    made = head.env_actions(np.array([[0.0, 0.0], [-50.0, 50.0], [1e-3, -1e-3]], np.float32))
    assert made.dtype == np.float32 and (made >= ARM.low).all() and (made <= ARM.high).all()
    np.testing.assert_allclose(made[:2], [[1.0, 4.0], [-1.0, 6.0]])


def test_a_free_action_is_not_scaled() -> None:
    free = Spec(name="torque", shape=(1,))
    assert gaussian(free).env_actions(np.array([[7.5]], np.float32)).tolist() == [[7.5]]
    with pytest.raises(ModelError, match="no finite limits to squash to: set squash=False"):
        gaussian(free, squash=True)


def test_an_action_of_several_axes_keeps_its_shape() -> None:
    spec = Spec(name="grid", shape=(2, 3), low=-1.0, high=1.0)
    head, outputs = gaussian(spec), torch.zeros(4, 6)
    drawn = head.draw(outputs, torch.from_numpy(head.noise(np.random.default_rng(0), 4)))
    assert drawn.shape == (4, 2, 3) and head.logprobs(outputs, drawn).shape == (4,)
    assert head.env_actions(drawn.detach().numpy()).shape == (4, 2, 3)
