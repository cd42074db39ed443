# SPDX-License-Identifier: Apache-2.0
"""A Llama of a few thousand weights, groups of random texts, and the plainest algorithm there is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from m2flow.algorithms.base import Algorithm, Batch, Loss, Outputs, Totals
from m2flow.config import Config
from m2flow.data.samples import Group, Prompt, Sample
from m2flow.engines.base import SamplingConfig
from m2flow.flow.learner import Learner
from m2flow.policies.llm import Llm
from m2flow.trainers.local import Local

VOCABULARY = 61


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: grouped-query attention, tied embeddings, weights large enough that logits differ."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1").save_pretrained(folder)
    return folder


@pytest.fixture
def make_policy(llama_folder: Path) -> Callable[..., Llm]:
    """A new policy from that folder."""
    return lambda **options: Llm(Llm.Config(model=str(llama_folder), **options))


@pytest.fixture
def plain_model(llama_folder: Path) -> LlamaForCausalLM:
    """The same weights in the stock implementation."""
    return LlamaForCausalLM.from_pretrained(llama_folder, attn_implementation="sdpa", dtype=torch.float32)


def _sample(index: int, length: int, rng: np.random.Generator) -> Sample:
    logprobs = -rng.exponential(size=length).astype(np.float32)
    return Sample(
        index=index,
        token_ids=rng.integers(0, VOCABULARY, length),
        logprobs=logprobs,
        sampled_logprobs=logprobs,
        entropies=np.ones(length, np.float32),
        versions=np.zeros(length, np.int32),
        text="",
        finish_reason="stop",
        reward=float(rng.integers(0, 2)),
    )


@pytest.fixture(scope="session")
def make_groups() -> Callable[..., list[Group]]:
    """``make_groups([(prompt length, [response lengths]), ...], seed=0)``."""

    def make(shapes: Sequence[tuple[int, Sequence[int]]], seed: int = 0) -> list[Group]:
        rng = np.random.default_rng(seed)
        return [
            Group(
                prompt=Prompt(id=f"p{i}", text="?"),
                prompt_ids=rng.integers(0, VOCABULARY, prompt),
                samples=[_sample(k, length, rng) for k, length in enumerate(lengths)],
            )
            for i, (prompt, lengths) in enumerate(shapes)
        ]

    return make


@pytest.fixture(scope="session")
def plain_logprobs() -> Callable[..., list[list[torch.Tensor]]]:
    """Log-probs by the stock model: a padded row per sample, [rows, tokens, vocabulary] at once."""

    def compute(model: Any, groups: Sequence[Group], temperature: float = 1.0) -> list[list[torch.Tensor]]:
        rows = [(g.prompt_ids, s.token_ids) for g in groups for s in g.samples]
        longest = max(len(p) + len(r) for p, r in rows)
        ids = torch.tensor(np.stack([np.pad(np.append(p, r), (0, longest - len(p) - len(r))) for p, r in rows]))
        attended = torch.arange(longest) < torch.tensor([len(p) + len(r) for p, r in rows])[:, None]
        logits = model(input_ids=ids, attention_mask=attended.long()).logits / temperature
        predicted = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        each = iter([predicted[i, len(p) - 1 : len(p) + len(r) - 1] for i, (p, r) in enumerate(rows)])
        return [[next(each) for _ in group.samples] for group in groups]

    return compute


class Plain(Algorithm):
    """Reward minus group mean, token mean, with a term whose gradient depends on the log-probs' values."""

    class Config(Config):
        """Options of the test."""

        needs: tuple[str, ...] = ("old_logprobs",)
        drop_truncated: bool = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.needs = frozenset(config.needs)
        self.loss_only = frozenset({"old_logprobs"})

    def advantages(self, batch: Batch) -> Batch:
        """Zero where masked."""
        mask = batch.mask & ~batch.truncated[:, None] if self.config.drop_truncated else batch.mask
        means = torch.stack([batch.rewards[batch.group_ids == group].mean() for group in batch.group_ids])
        spread = torch.where(mask, (batch.rewards - means)[:, None] + 0.1, 0.0)
        returns = torch.where(mask, batch.rewards[:, None], 0.0)
        return replace(batch, advantages=spread, mask=mask, returns=returns)

    def loss(self, batch: Batch, outputs: Outputs, totals: Totals) -> Loss:
        """Masked with ``where``, as all algorithms do."""
        assert batch.old_logprobs is not None and batch.advantages is not None
        zeros = torch.zeros_like(outputs.logprobs)
        gap = torch.where(batch.mask, outputs.logprobs - batch.old_logprobs, zeros)
        ratio = gap.exp()
        each = -ratio * batch.advantages + 0.01 * torch.where(batch.mask, outputs.logprobs, zeros) ** 2
        if outputs.entropies is not None:
            each = each - 0.1 * torch.where(batch.mask, outputs.entropies, zeros)
        if batch.reference_logprobs is not None:
            each = each + 0.1 * torch.where(batch.mask, outputs.logprobs - batch.reference_logprobs, zeros)
        clipped = ((ratio - 1).abs() > 0.2).sum().item() / totals.num_tokens
        sums = {"clip_fraction": clipped, "kl": (gap.expm1() - gap).sum().item() / totals.num_tokens}
        value = None
        if outputs.values is not None:
            assert batch.returns is not None
            value = torch.where(batch.mask, outputs.values - batch.returns, zeros).square().sum() / totals.num_tokens
        return Loss(policy=each.sum() / totals.num_tokens, value=value, sums=sums)


@pytest.fixture
def make_learner(make_policy: Callable[..., Llm]) -> Callable[..., Learner]:
    """``make_learner(needs=(...), lora=..., **trainer options)``; gradients are not clipped unless asked."""

    def make(
        needs: tuple[str, ...] = ("old_logprobs",),
        drop_truncated: bool = False,
        policy: dict[str, Any] | None = None,
        **trainer: Any,
    ) -> Learner:
        algorithm = Plain.Config(needs=needs, drop_truncated=drop_truncated)
        options = {"max_grad_norm": 0.0, **trainer}
        sampling = SamplingConfig(max_new_tokens=12)
        return Learner(
            make_policy(**policy or {}), algorithm=algorithm, trainer=Local.Config(**options), sampling=sampling
        )

    return make


@pytest.fixture(scope="session")
def gradients() -> Callable[..., dict[str, torch.Tensor]]:
    """The gradients with which ``learner`` would make its first step; it makes none."""

    def take(learner: Any, groups: Sequence[Group]) -> dict[str, torch.Tensor]:
        taken: dict[str, torch.Tensor] = {}
        models = learner.models
        parts = {"": models.policy.trainable(), "critic.": models.critic.trainable() if models.critic else {}}

        def capture(_: Any) -> None:
            for prefix, named in parts.items():
                taken.update({prefix + k: p.grad.clone() for k, p in named.items()})
            learner.trainer.optimizer.zero()

        learner.trainer.optimizer.step = capture
        learner.update(groups)
        return taken

    return take
