# SPDX-License-Identifier: Apache-2.0
"""Writing a policy for other software: a plain Hugging Face folder, or an adapter in peft format."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from m2flow.errors import ModelError
from m2flow.policies.language import loading

if TYPE_CHECKING:
    from m2flow.policies.llm import Llm


def save(policy: "Llm", path: Path, *, merged: bool) -> None:
    """Write ``policy`` into the folder ``path``, which must be new or empty: all of it, or nothing.

    Raises:
        ModelError: there is something in the folder, it cannot be written, or there is no adapter to write alone.
    """
    if policy.adapter is None and not merged:
        raise ModelError("all weights of this policy are trained, so it has no adapter to save: save it merged")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ModelError(f"{path} is not an empty folder: give a new one, so that nothing is overwritten")
    path = path.absolute()
    partial = path.with_name(f"{path.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with loading.quiet():
            _save_parts(policy, partial, merged=merged)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(
            f"cannot write the model to {path}: {error}; nothing of it was kept. It needs "
            f"{_megabytes(policy, merged):,.1f} MB: free some space, or give another folder"
        ) from error


def _save_parts(policy: "Llm", path: Path, *, merged: bool) -> None:
    adapter = policy.adapter
    if merged:
        _save_module(policy.module, path, state=adapter.merged_state() if adapter else policy.module.state_dict())
        _save_rest(policy, path)
    elif adapter:
        adapter.save(path)


def _megabytes(policy: "Llm", merged: bool) -> float:
    """Size of the weights that are written."""
    weights = policy.module.parameters() if merged else policy.trainable().values()
    return sum(weight.nbytes for weight in weights) / 1e6


def _save_module(module: Any, path: Path, *, state: dict[str, torch.Tensor]) -> None:
    """Save through a bare copy of the class, which has neither adapters nor our attention; no memory is copied."""
    with torch.device("meta"):
        bare = type(module)(type(module.config).from_dict(module.config.to_dict()))
    bare.load_state_dict(state, strict=True, assign=True)
    bare.tie_weights()
    bare.config.use_cache = True
    bare.generation_config = module.generation_config
    bare.save_pretrained(path)


def _save_rest(policy: "Llm", path: Path) -> None:
    policy.tokenizer.save_pretrained(path)
    if policy.config.chat.template is not None:
        (path / "chat_template.jinja").write_text(
            policy.config.chat.template.read_text(encoding="utf-8"), encoding="utf-8"
        )
