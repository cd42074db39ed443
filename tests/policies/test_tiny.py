# SPDX-License-Identifier: Apache-2.0
"""The model that ships in the package: small, plain, and right about every third time."""

import importlib.util
import string
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from m2flow.data.arithmetic import problems, question
from m2flow.data.samples import Prompt
from m2flow.policies.language.model_files import TINY
from m2flow.policies.language.probe import CausalLayout
from m2flow.policies.llm import Llm

SCRIPT = Path(__file__).parents[2] / "examples" / "reasoning" / "pretrain_tiny.py"


@pytest.fixture(scope="module")
def policy() -> Llm:
    """The shipped model."""
    return Llm(Llm.Config(model="tiny"))


def answer_logprobs(policy: Llm, terms: list[tuple[int, int]]) -> list[tuple[float, bool]]:
    """For each sum the log-prob of its right answer with its end, and whether each token of it is the likeliest."""
    end = policy.stop_token_ids[0]
    asked = [policy.encode(Prompt(id="x", text=question(a, b))) for a, b in terms]
    told = [[*policy.encode(Prompt(id="x", text=str(a + b))), end] for a, b in terms]
    rows = [torch.tensor([*q, *r]) for q, r in zip(asked, told, strict=True)]
    lengths = tuple(len(row) for row in rows)
    with torch.no_grad():
        hidden = policy.hidden(
            torch.cat(rows), torch.cat([torch.arange(n) for n in lengths]), layout=CausalLayout(lengths)
        )
    found = []
    for row, states, answer in zip(rows, hidden.split(lengths), told, strict=True):
        logprobs = policy.logits(states[-len(answer) - 1 : -1]).log_softmax(-1)
        target = row[-len(answer) :]
        found.append((logprobs.gather(1, target[:, None]).sum().item(), bool((logprobs.argmax(1) == target).all())))
    return found


def test_it_is_right_about_a_third_of_the_time_and_could_be_right_more_often(policy: Llm):
    found = answer_logprobs(policy, problems("held_out"))
    assert len(found) > 900
    assert 0.28 < np.exp([logprob for logprob, _ in found]).mean() < 0.39
    assert np.mean([likeliest for _, likeliest in found]) > 0.9


def test_eight_samples_nearly_always_hold_a_right_one_and_a_wrong_one(policy: Llm):
    right = np.exp([logprob for logprob, _ in answer_logprobs(policy, problems("held_out"))])
    mixed = 1 - right**8 - (1 - right) ** 8
    assert mixed.mean() > 0.85  # groups that say nothing to GRPO are rare


def test_it_is_a_plain_model_of_a_few_megabytes(policy: Llm):
    assert policy.module.config.architectures == ["LlamaForCausalLM"]
    assert {path.name for path in TINY.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert 1e6 < sum(path.stat().st_size for path in TINY.iterdir()) < 4e6
    assert policy.max_context >= 64 and len(policy.stop_token_ids) == 1


def test_every_printable_character_is_one_token(policy: Llm):
    text = string.digits + string.ascii_letters + string.punctuation + " \n"
    ids = policy.encode(Prompt(id="x", text=text))
    assert len(set(ids.tolist())) == len(text) and policy.decode(ids) == text


def load_script() -> ModuleType:
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("pretrain_tiny", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_that_made_it_makes_a_model_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = load_script()
    monkeypatch.setattr(script, "STEPS", 3)
    script.main(str(tmp_path))
    made = Llm(Llm.Config(model=str(tmp_path)))
    shipped = Llm(Llm.Config(model="tiny"))
    assert {n: w.shape for n, w in made.state().items()} == {n: w.shape for n, w in shipped.state().items()}
    assert made.tokenizer.get_vocab() == shipped.tokenizer.get_vocab() and made.stop_token_ids == shipped.stop_token_ids


def test_the_script_scores_a_model_as_sampling_would():
    script = load_script()
    tokenizer = script.make_tokenizer()
    model = script.make_model(len(tokenizer))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        losses = script.token_losses(model, [("1+2=", "3"), ("55+66=", "121")], tokenizer=tokenizer)
    # All logits equal: each token costs the logarithm of the vocabulary; an answer has its digits and its end.
    assert torch.allclose(losses.sum(1), torch.tensor([2.0, 4.0]) * np.log(len(tokenizer)))
    assert (losses > 0).sum(1).tolist() == [2, 4]


def test_the_careless_teacher_is_right_as_often_as_asked_and_never_negative():
    script, rng = load_script(), np.random.default_rng(0)
    answers = [int(script.answer(3, 4, rng=rng, right_share=0.4)) for _ in range(4000)]
    assert min(answers) >= 0
    assert np.mean([a == 7 for a in answers]) == pytest.approx(0.4, abs=0.03)
    assert {script.answer(3, 4, rng=rng, right_share=1.0) for _ in range(50)} == {"7"}
