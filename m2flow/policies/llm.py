# SPDX-License-Identifier: Apache-2.0
"""A causal language model of any Hugging Face architecture that packs; transformers and torch load when it is used."""

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from m2flow import config
from m2flow.data.samples import Prompt
from m2flow.policies.base import Policy, copy_tensors
from m2flow.policies.language.options import ChatConfig, LoraConfig

if TYPE_CHECKING:
    from m2flow.policies.language.attention import Layout
    from m2flow.policies.language.chat import PromptEncoder
    from m2flow.policies.language.lora import Adapter
    from m2flow.policies.language.reference import Reference


class Llm(Policy):
    """A language model that is trained, with its tokenizer.

    Every forward has one packed row: sequences lie one after another, a ``Layout`` says what attends to what. Nothing
    is read before the first use of ``module``, ``tokenizer`` or what needs them; those raise ``ModelError``.
    """

    engine = "hf"

    class Config(config.Config):
        """Which model, in which precision, and whether all of it is trained or adapters only."""

        headline = "model"

        model: str = "tiny"
        """``tiny`` (ships with m2flow), ``smollm2``, the path of a Hugging Face model folder, or a hub name."""
        dtype: Literal["float32", "bfloat16"] = "float32"
        """Type of the weights. On a CPU float32 is the faster one."""
        lora: LoraConfig | None = None
        """Train new adapters instead of all weights."""
        adapter: Path | None = None
        """Train the adapter in this folder further (peft format), instead of all weights."""
        chat: ChatConfig = ChatConfig()
        """How chats become text."""

        def problems(self) -> list[str]:
            """Paths and packages that are missing, and options that exclude each other."""
            return [*_model_problems(self.model), *_adapter_problems(self)]

    def __init__(self, config: Any = None) -> None:
        self.config: Llm.Config = config or self.Config()
        self.version = 0

    @cached_property
    def folder(self) -> Path:
        """Where the base model's files are."""
        from m2flow.policies.language import model_files

        return model_files.find(self.config.model)

    @cached_property
    def module(self) -> Any:
        """The Hugging Face causal language model, its adapters in place; call ``hidden``, not the module itself."""
        from m2flow.policies.language import loading, probe

        module = loading.load_module(self.folder, dtype=self.config.dtype)
        probe.require_packable(module)
        self._adapter = self._attach(module)
        return module

    def _attach(self, module: Any) -> "Adapter | None":
        if self.config.adapter is not None:
            from m2flow.policies.language import lora

            return lora.load(module, self.config.adapter)
        if self.config.lora is not None:
            from m2flow.policies.language import lora

            return lora.create(module, self.config.lora)
        return None

    @property
    def adapter(self) -> "Adapter | None":
        """The adapters in ``module``; none where all weights are trained."""
        return self.module and self._adapter

    @cached_property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        from m2flow.policies.language import loading

        return loading.load_tokenizer(self.folder)

    @cached_property
    def _encoder(self) -> "PromptEncoder":
        from m2flow.policies.language import chat

        return chat.PromptEncoder(self.tokenizer, self.config.chat)

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a response: of the generation config, the tokenizer, and the end of a chat turn."""
        from m2flow.policies.language import chat, loading

        return chat.stop_tokens(self.tokenizer, loading.load_generation(self.folder), turn_end=self._encoder.turn_end())

    @cached_property
    def max_context(self) -> int:
        """Longest sequence in tokens, prompt and response together."""
        from m2flow.policies.language import loading

        return loading.context_tokens(loading.load_config(self.folder))

    def encode(self, prompt: Prompt) -> Int[np.ndarray, "P"]:
        """Tokens of a prompt, through the chat template where it has messages.

        Raises:
            DataError: the prompt is empty, or the template refuses it.
            ModelError: a chat, and there is no chat template.
        """
        return self._encoder.encode(prompt)

    def decode(self, token_ids: Sequence[int] | Int[np.ndarray, "T"]) -> str:
        """The text of tokens, without special ones."""
        ids = [int(token) for token in token_ids]
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def hidden(
        self, token_ids: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], *, layout: "Layout"
    ) -> Float[Tensor, "tokens width"]:
        """Hidden states of one packed row, before the output projection; adapters act.

        Args:
            token_ids: int64; sequences one after another, without padding.
            positions: each token's place in its own sequence, from 0.
            layout: what attends to what.
        """
        from m2flow.policies.language import probe

        return probe.decode(self.module, token_ids, positions=positions, layout=layout)

    @property
    def head_weight(self) -> Float[Tensor, "vocabulary width"]:
        """The output projection: logits are ``hidden @ head_weight.T`` and nothing more, which loading has checked."""
        return self.module.get_output_embeddings().weight

    def logits(self, hidden: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens vocabulary"]:
        """Logits of hidden states."""
        return functional.linear(hidden, self.head_weight)

    def checkpoint_activations(self, enabled: bool) -> None:
        """Whether the backward pass computes each layer's activations again instead of keeping them.

        Raises:
            ModelError: the model cannot.
        """
        from m2flow.policies.language import recompute

        recompute.switch(self.module, enabled)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name: all of them, or those of the adapters."""
        return {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}

    def state(self) -> dict[str, Tensor]:
        """The tensors of ``trainable``, not copied."""
        return {name: weight.detach() for name, weight in self.trainable().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy ``state`` into the parameters.

        Raises:
            CheckpointError: names, shapes or types differ from this policy's.
        """
        copy_tensors(state, into=self.state())

    def reference(self) -> "Reference":
        """The policy as it was before training, frozen: the base model, or the adapter that training started from.

        With adapters it shares the base model and costs next to nothing; else it is read from the files once more.
        """
        from m2flow.policies.language.reference import Reference

        if self.adapter is not None:
            return Reference(self, self.adapter.initial)
        return Reference(type(self)(self.config))

    def save(self, path: Path, *, merged: bool = True) -> None:
        """Write a Hugging Face model folder with tokenizer, or only the adapter in peft format.

        Args:
            path: the folder, new or empty.
            merged: the whole model, adapters multiplied out; false writes the adapter alone.

        Raises:
            ModelError: the folder holds something, or there is no adapter to write.
        """
        from m2flow.policies.language import saving

        saving.save(self, path, merged=merged)


def _model_problems(model: str) -> list[str]:
    if model == "smollm2":
        from m2flow.policies.language import smollm2

        return smollm2.problems()
    path = Path(model).expanduser()
    if model.startswith(("/", ".", "~")) and not path.is_dir():
        return [f"no folder {path} for 'model': give a Hugging Face model folder, a hub name, 'tiny' or 'smollm2'"]
    return []


def _adapter_problems(config: "Llm.Config") -> list[str]:
    found = []
    if config.lora is not None and config.adapter is not None:
        found.append("'lora' makes new adapters and 'adapter' continues old ones: give one of them")
    if config.adapter is not None and not (config.adapter / "adapter_config.json").is_file():
        found.append(f"no adapter_config.json in {config.adapter}: give the folder of an adapter in peft format")
    if (config.lora or config.adapter) and importlib.util.find_spec("peft") is None:
        found.append("adapters need the package 'peft': pip install 'm2flow[lora]'")
    return found
