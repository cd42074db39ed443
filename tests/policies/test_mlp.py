# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from m2flow.errors import CheckpointError, ModelError
from m2flow.policies.control.statistics import Normalizer
from m2flow.policies.mlp import Mlp
from m2flow.spec import Interface, Spec

ARM = Interface(
    observations=(
        Spec(name="joints", shape=(3,), unit="rad"),
        Spec(name="grip", shape=(), low=0.0, high=1.0),
        Spec(name="pose", shape=(2, 2)),
    ),
    action=Spec(name="push", shape=(2,), low=-1.0, high=1.0),
)


def mlp(interface: Interface = ARM, *, seed: int = 0, **options: Any) -> Mlp:
    return Mlp(Mlp.Config(hidden=(8, 8), **options), interface, seed=seed)


def seen(num: int, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return {s.name: torch.from_numpy(s.fake(rng, (num,))) for s in ARM.observations}


def test_all_that_is_observed_is_read_in_one_row() -> None:
    policy, observations = mlp(), seen(5)
    assert policy.width == 8 and policy.flat(observations).shape == (5, 8)
    np.testing.assert_array_equal(policy.flat(observations)[:, 4:], observations["pose"].flatten(1))


def test_equal_seeds_make_equal_weights_and_others_do_not() -> None:
    first, same, other = (mlp(seed=seed).state() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["body.0.weight"], other["body.0.weight"])


def test_layers_begin_orthogonal_and_actions_near_zero() -> None:
    weight = mlp().trainable()["body.2.weight"]
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(8), atol=1e-5, rtol=0)
    assert mlp().act(seen(50), None)[0].abs().max() < 0.2


def test_what_is_evaluated_is_what_was_acted() -> None:
    policy, observations = mlp(std="state", squash=True), seen(6)
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 6))
    actions, logprobs = policy.act(observations, noise)
    assert torch.equal(policy.evaluate(observations, actions)[0], logprobs)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_a_critic_shares_the_layers_it_is_configured_to(critic: Any) -> None:
    policy = mlp(critic=critic)
    values = policy.critic()
    values.values(seen(3)).sum().backward()
    reached = {name for name, parameter in policy.trainable().items() if parameter.grad is not None}
    assert ("body.0.weight" in reached) == (critic == "shared")
    assert values.values(seen(3)).shape == (3,)


def test_a_reference_stays_as_it_was() -> None:
    policy = mlp()
    reference = policy.reference()
    before = reference.state()["body.0.weight"].clone()
    with torch.no_grad():
        policy.trainable()["body.0.weight"].add_(1)
    assert torch.equal(reference.state()["body.0.weight"], before)
    assert not any(p.requires_grad for p in reference.module.parameters())


def test_statistics_are_those_of_all_states_whatever_parts_they_came_in() -> None:
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0)) * 3 + 5
    whole, parts = Normalizer(4), Normalizer(4)
    whole.observe(x)
    for part in x.split([1, 40, 0, 59]):
        parts.observe(part)
    torch.testing.assert_close(whole.mean, parts.mean)
    torch.testing.assert_close(whole.variance, parts.variance)
    torch.testing.assert_close(whole.mean.float(), x.mean(0))
    normal = parts(x)
    assert normal.mean().abs() < 1e-5 and (normal.std(0, correction=0) - 1).abs().max() < 1e-4
    assert parts(x + 1e9).max() == 10


def test_statistics_go_with_the_weights(tmp_path: Path) -> None:
    policy, other = mlp(normalize_observations=True), mlp(normalize_observations=True, seed=3)
    policy.observe(seen(20))
    with torch.no_grad():
        other.load_state(policy.state())
    assert torch.equal(policy.act(seen(4), None)[0], other.act(seen(4), None)[0])
    policy.save(tmp_path / "saved")
    assert set(load_file(tmp_path / "saved" / "policy.safetensors")) == set(policy.state())
    with pytest.raises(CheckpointError, match=r"belong to another model: 3 of .* differ .*normalizer"):
        mlp().load_state(policy.state())


def test_what_it_cannot_read_or_do_is_refused() -> None:
    camera = Spec(name="front", shape=(8, 8, 3), dtype="uint8", frame="front")
    with pytest.raises(ModelError, match="'front' is an image, 'mlp' reads numbers"):
        mlp(Interface(observations=(camera,), action=ARM.action))
    switches = Spec(name="switches", shape=(3,), dtype="int64", low=0, high=1)
    with pytest.raises(ModelError, match="'switches' is int64"):
        mlp(Interface(observations=ARM.observations, action=switches)).state()
    with pytest.raises(ModelError, match="no adapters to write on their own"):
        mlp().save(Path("unused"), merged=False)
    with pytest.raises(ModelError, match="cannot compute its activations again"):
        mlp().checkpoint_activations(True)
