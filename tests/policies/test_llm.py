# SPDX-License-Identifier: Apache-2.0
"""The language-model policy: its numbers are those of the model itself, whatever is packed around them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from m2flow import registry
from m2flow.data.samples import Prompt
from m2flow.errors import CheckpointError, ConfigError, ModelError
from m2flow.policies.language.probe import CausalLayout
from m2flow.policies.llm import Llm

FAMILIES = ("llama", "qwen2", "qwen3", "smollm3")
LENGTHS = (7, 1, 11)


def packed_row() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and positions of three sequences."""
    ids = torch.randint(0, 64, (sum(LENGTHS),), generator=torch.Generator().manual_seed(3))
    return ids, torch.cat([torch.arange(n) for n in LENGTHS])


def logits_alone(folder: Path, ids: torch.Tensor, implementation: str) -> torch.Tensor:
    """What transformers itself says about each sequence, one forward each."""
    module = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=implementation)
    with torch.no_grad():
        return torch.cat([module(part[None], use_cache=False).logits[0] for part in ids.split(LENGTHS)])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logits_are_those_of_each_sequence_alone(
    folder_of: Callable[[str], Path], family: str, implementation: str
):
    policy = Llm(Llm.Config(model=str(folder_of(family))))
    ids, positions = packed_row()
    with torch.no_grad():
        packed = policy.logits(policy.hidden(ids, positions, layout=CausalLayout(LENGTHS)))
    alone = logits_alone(folder_of(family), ids, implementation)
    assert alone.std() > 0.5  # large enough for the comparison to mean something
    torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layout_that_lets_sequences_see_each_other_changes_the_logits(folder_of: Callable[[str], Path], family: str):
    policy = Llm(Llm.Config(model=str(folder_of(family))))
    ids, positions = packed_row()
    with torch.no_grad():
        leaking = policy.logits(policy.hidden(ids, positions, layout=CausalLayout((sum(LENGTHS),))))
    alone = logits_alone(folder_of(family), ids, "sdpa")
    torch.testing.assert_close(leaking[:7], alone[:7], atol=2e-5, rtol=1e-4)
    assert (leaking[7:] - alone[7:]).abs().max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointed_activations_give_the_same_gradients(folder_of: Callable[[str], Path], family: str):
    policy = Llm(Llm.Config(model=str(folder_of(family))))
    ids, positions = packed_row()

    def gradients() -> dict[str, torch.Tensor]:
        policy.module.zero_grad()
        policy.logits(policy.hidden(ids, positions, layout=CausalLayout(LENGTHS))).logsumexp(-1).sum().backward()
        return {name: weight.grad.clone() for name, weight in policy.trainable().items() if weight.grad is not None}

    calls = []
    policy.module.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    plain = gradients()
    assert len(calls) == 1
    policy.checkpoint_activations(True)
    calls.clear()
    again = gradients()
    assert len(calls) == 2  # once forward, once more in the backward pass
    policy.checkpoint_activations(False)
    calls.clear()
    gradients()
    assert len(calls) == 1
    assert plain.keys() == again.keys() == policy.trainable().keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, msg=name)


def test_making_a_policy_reads_nothing():
    policy = Llm(Llm.Config(model="/nowhere/at/all"))
    assert policy.version == 0
    with pytest.raises(ModelError, match="no model folder"):
        policy.tokenizer  # noqa: B018


def test_the_policy_is_found_by_its_name(llama: Path):
    config = registry.load("policies", "llm").Config.from_dict({"model": str(llama)})
    assert isinstance(registry.build(config), Llm)


def test_a_bare_name_stands_for_the_model():
    assert Llm.Config.from_dict({"model": "smollm2"}).model == "smollm2"


def test_state_is_restored_to_the_bit(llama: Path):
    policy = Llm(Llm.Config(model=str(llama)))
    before = {name: weight.clone() for name, weight in policy.state().items()}
    with torch.no_grad():
        for weight in policy.trainable().values():
            weight.add_(1)
    policy.load_state(before)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.state().items())


def test_tied_weights_are_one_parameter(build: Callable[..., Path], tmp_path: Path):
    tied = Llm(Llm.Config(model=str(build(tmp_path, tie_word_embeddings=True))))
    assert not any("lm_head" in name for name in tied.trainable())
    assert tied.head_weight is tied.trainable()["model.embed_tokens.weight"]


@pytest.mark.parametrize("change", ["missing", "shape", "dtype"])
def test_the_state_of_another_model_is_refused(llama: Path, change: str):
    policy = Llm(Llm.Config(model=str(llama)))
    state = {name: weight.clone() for name, weight in policy.state().items()}
    weight = state.pop("model.norm.weight")
    changed = {
        "missing": {},
        "shape": {"model.norm.weight": weight[1:]},
        "dtype": {"model.norm.weight": weight.double()},
    }
    with pytest.raises(CheckpointError, match=r"belong to another model: 1 of .*model\.norm\.weight"):
        policy.load_state({**state, **changed[change]})


def test_the_reference_keeps_the_first_weights(llama: Path):
    policy = Llm(Llm.Config(model=str(llama)))
    ids, positions = packed_row()
    first = policy.logits(policy.hidden(ids, positions, layout=CausalLayout(LENGTHS))).detach()
    with torch.no_grad():
        for weight in policy.trainable().values():
            weight.mul_(1.5)
    policy.version = 1
    reference = policy.reference()
    again = reference.logits(reference.hidden(ids, positions, layout=CausalLayout(LENGTHS)))
    assert torch.equal(again, first) and not again.requires_grad
    assert not torch.allclose(
        policy.logits(policy.hidden(ids, positions, layout=CausalLayout(LENGTHS))), first, atol=0.1
    )


def test_a_saved_policy_is_a_plain_model_folder(llama: Path, tmp_path: Path):
    policy = Llm(Llm.Config(model=str(llama)))
    with torch.no_grad():
        policy.head_weight.mul_(2)
    policy.save(tmp_path / "out")
    ids, _ = packed_row()
    torch.testing.assert_close(logits_alone(tmp_path / "out", ids, "sdpa"), 2 * logits_alone(llama, ids, "sdpa"))
    saved = Llm(Llm.Config(model=str(tmp_path / "out")))
    prompt = Prompt(id="x", messages=({"role": "user", "content": "hi"},))
    assert np.array_equal(saved.encode(prompt), policy.encode(prompt)) and saved.stop_token_ids == policy.stop_token_ids


def test_saving_overwrites_nothing(llama: Path):
    policy = Llm(Llm.Config(model=str(llama)))
    with pytest.raises(ModelError, match="not an empty folder"):
        policy.save(llama)


def test_saving_an_adapter_needs_an_adapter(llama: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="no adapter to save"):
        Llm(Llm.Config(model=str(llama))).save(tmp_path / "out", merged=False)


def test_bfloat16_is_there_when_asked_for(llama: Path):
    assert {w.dtype for w in Llm(Llm.Config(model=str(llama))).trainable().values()} == {torch.float32}
    low = Llm(Llm.Config(model=str(llama), dtype="bfloat16"))
    assert {w.dtype for w in low.trainable().values()} == {torch.bfloat16}


def test_configuration_mistakes_are_found_without_loading(tmp_path: Path):
    missing = {"template": tmp_path / "none.jinja"}
    config = Llm.Config.from_dict(
        {"model": str(tmp_path / "nothing"), "lora": {"rank": 4}, "adapter": tmp_path, "chat": missing}
    )
    with pytest.raises(ConfigError) as caught:
        config.check()
    text = str(caught.value)
    assert "4 mistakes" in text and "no folder" in text and "give one of them" in text
    assert "no adapter_config.json" in text and "chat: no file" in text


def test_checking_a_configuration_imports_neither_transformers_nor_peft():
    script = (
        "import sys; from m2flow.policies.llm import Llm; Llm.Config(lora={}).check(); "
        "sys.exit(any(name in sys.modules for name in ('transformers', 'peft')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
