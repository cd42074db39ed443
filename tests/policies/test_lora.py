# SPDX-License-Identifier: Apache-2.0
"""Adapters: they alone are trained and saved, they act in the packed forward; without them the base model is back."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from m2flow.errors import ConfigError, ModelError
from m2flow.policies.language.probe import CausalLayout
from m2flow.policies.llm import Llm

IDS = torch.tensor([5, 9, 11, 30, 7, 22])


def logits(policy: Llm) -> torch.Tensor:
    """Of one causal sequence."""
    return policy.logits(policy.hidden(IDS, torch.arange(6), layout=CausalLayout((6,))))


def new(folder: Path, **lora: object) -> Llm:
    return Llm(Llm.Config.from_dict({"model": str(folder), "lora": {"rank": 4, "alpha": 8, **lora}}))


def shaken(policy: Llm) -> Llm:
    """With adapters that do something."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in policy.trainable().values():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    return policy


def test_only_adapters_are_trained(llama: Path):
    names = list(new(llama).trainable())
    assert names and all(".lora_" in name for name in names)
    assert len(names) == 2 * 7 * 2  # A and B of seven linear layers in two blocks; none at the output projection
    assert not any("lm_head" in name for name in names)


def test_new_adapters_change_nothing_at_first(llama: Path):
    torch.testing.assert_close(logits(new(llama)), logits(Llm(Llm.Config(model=str(llama)))))


def test_adapters_act_in_the_packed_forward_as_in_pefts_own(llama: Path, tmp_path: Path):
    policy = shaken(new(llama))
    policy.save(tmp_path / "adapter", merged=False)
    theirs = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), str(tmp_path / "adapter"))
    with torch.no_grad():
        expected = theirs(IDS[None], use_cache=False).logits[0]
        base = AutoModelForCausalLM.from_pretrained(llama)(IDS[None], use_cache=False).logits[0]
    torch.testing.assert_close(logits(policy), expected, atol=2e-5, rtol=1e-4)
    assert (expected - base).abs().max() > 0.5


def test_targets_choose_the_layers(llama: Path):
    names = new(llama, targets=("q_proj", "v_proj")).trainable()
    assert {name.split(".")[4] for name in names} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("targets", [("q_prj",), ("q_proj", "nothing")])
def test_a_target_that_matches_nothing_is_an_error(llama: Path, targets: tuple[str, ...]):
    with pytest.raises(ModelError, match=r"lora\.targets"):
        new(llama, targets=targets).trainable()


@pytest.mark.parametrize(
    ("target", "reason"), [("lm_head", "output projection"), ("embed_tokens", "linear layers only")]
)
def test_a_target_that_packed_training_cannot_have_is_an_error(llama: Path, target: str, reason: str):
    with pytest.raises(ModelError, match=reason):
        new(llama, targets=("q_proj", target)).trainable()


def test_first_weights_depend_on_the_seed_alone(llama: Path):
    torch.manual_seed(1)
    one = new(llama).state()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two, three = new(llama).state(), new(llama, seed=1).state()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], three[name]) for name in one)


def test_the_reference_is_the_base_model_and_costs_no_copy(llama: Path):
    policy = new(llama)
    reference = policy.reference()
    shaken(policy)
    hidden = reference.hidden(IDS, torch.arange(6), layout=CausalLayout((6,)))
    torch.testing.assert_close(reference.logits(hidden), logits(Llm(Llm.Config(model=str(llama)))).detach())
    assert not hidden.requires_grad
    assert reference.head_weight.data_ptr() == policy.head_weight.data_ptr()


def test_gradients_flow_after_the_reference_was_asked(llama: Path):
    policy = shaken(new(llama))
    before = logits(policy)
    policy.reference().hidden(IDS, torch.arange(6), layout=CausalLayout((6,)))
    before.sum().backward()
    first = {name: weight.grad.clone() for name, weight in policy.trainable().items() if weight.grad is not None}
    assert first.keys() == policy.trainable().keys() and len(first) == 28
    policy.module.zero_grad()
    logits(policy).sum().backward()
    for name, weight in policy.trainable().items():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, first[name])


def test_gradients_are_the_same_with_checkpointed_activations(llama: Path):
    policy = shaken(new(llama))
    logits(policy).logsumexp(-1).sum().backward()
    plain = {name: weight.grad.clone() for name, weight in policy.trainable().items() if weight.grad is not None}
    policy.module.zero_grad()
    policy.checkpoint_activations(True)
    logits(policy).logsumexp(-1).sum().backward()
    assert len(plain) == 28 and all(g.abs().max() > 0 for g in plain.values())
    for name, weight in policy.trainable().items():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, plain[name])


def test_an_adapter_alone_is_saved_and_read_again(llama: Path, tmp_path: Path):
    policy = shaken(new(llama))
    policy.save(tmp_path / "adapter", merged=False)
    assert {p.name for p in tmp_path.joinpath("adapter").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert not list(tmp_path.joinpath("adapter").glob("model*"))
    again = Llm(Llm.Config(model=str(llama), adapter=tmp_path / "adapter"))
    assert again.state().keys() == policy.state().keys()
    assert all(torch.equal(weight, policy.state()[name]) for name, weight in again.state().items())
    torch.testing.assert_close(logits(again), logits(policy))


def test_the_reference_of_a_continued_adapter_is_that_adapter(llama: Path, tmp_path: Path):
    shaken(new(llama)).save(tmp_path / "adapter", merged=False)
    policy = Llm(Llm.Config(model=str(llama), adapter=tmp_path / "adapter"))
    start, names = logits(policy).detach(), list(policy.trainable())
    reference = policy.reference()
    shaken(policy)
    moved = logits(policy).detach()
    again = reference.logits(reference.hidden(IDS, torch.arange(6), layout=CausalLayout((6,))))
    torch.testing.assert_close(again, start)
    torch.testing.assert_close(logits(policy).detach(), moved)
    assert (moved - start).abs().max() > 0.5 and list(policy.trainable()) == names


def test_a_copy_of_a_policy_has_adapters_of_its_own(llama: Path, tmp_path: Path):
    shaken(new(llama)).save(tmp_path / "adapter", merged=False)
    policy = Llm(Llm.Config(model=str(llama), adapter=tmp_path / "adapter"))
    start = logits(policy).detach()
    twin = copy.deepcopy(policy)
    shaken(policy)
    torch.testing.assert_close(logits(twin), start)
    reference = twin.reference()
    shaken(twin)
    torch.testing.assert_close(
        reference.logits(reference.hidden(IDS, torch.arange(6), layout=CausalLayout((6,)))), start
    )


def test_a_merged_model_says_the_same_and_merging_leaves_the_policy_as_it_is(llama: Path, tmp_path: Path):
    policy = shaken(new(llama))
    before, state = (
        logits(policy).detach(),
        {name: weight.clone() for name, weight in policy.module.state_dict().items()},
    )
    policy.save(tmp_path / "merged")
    torch.testing.assert_close(
        logits(Llm(Llm.Config(model=str(tmp_path / "merged")))).detach(), before, atol=2e-5, rtol=1e-4
    )
    assert all(torch.equal(weight, state[name]) for name, weight in policy.module.state_dict().items())


def test_dropout_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="log-probs differ from the rollout's"):
        Llm.Config.from_dict({"lora": {"dropout": 0.1}})


def test_an_adapter_of_another_model_is_an_error(build: Callable[..., Path], llama: Path, tmp_path: Path):
    shaken(new(llama)).save(tmp_path / "adapter", merged=False)
    shallower = build(tmp_path / "shallower", num_hidden_layers=1, layer_types=None)
    wider = build(tmp_path / "wider", hidden_size=64)
    for folder in (shallower, wider):
        with pytest.raises(ModelError, match="does not fit"):
            Llm(Llm.Config(model=str(folder), adapter=tmp_path / "adapter")).trainable()


def damaged(adapter: Path, how: str) -> None:
    weights = adapter / "adapter_model.safetensors"
    options = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(weights)
    first = min(tensors)
    ways = {
        "cut": lambda: weights.write_bytes(weights.read_bytes()[:100]),
        "pickle": lambda: weights.rename(adapter / "adapter_model.bin"),
        "missing": lambda: save_file({k: v for k, v in tensors.items() if k != first}, weights),
    }
    other = lambda: (adapter / "adapter_config.json").write_text(json.dumps({**options, **json.loads(how)}))  # noqa: E731
    ways.get(how, other)()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("cut", "does not fit"),
        ("pickle", "is a pickle"),
        ("missing", "1 weights are missing"),
        ('{"peft_type": "IA3"}', "IA3"),
        ('{"use_dora": true}', "use_dora"),
        ('{"modules_to_save": ["lm_head"]}', "modules_to_save"),
        ('{"bias": "all"}', "bias"),
    ],
)
def test_a_damaged_or_unsupported_adapter_is_an_error(llama: Path, tmp_path: Path, how: str, reason: str):
    new(llama).save(tmp_path / "adapter", merged=False)
    damaged(tmp_path / "adapter", how)
    with pytest.raises(ModelError, match=reason):
        Llm(Llm.Config(model=str(llama), adapter=tmp_path / "adapter")).trainable()
