# SPDX-License-Identifier: Apache-2.0
"""Reading a causal language model strictly: every weight comes from the file, or there is an error."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from m2flow.errors import ModelError
from m2flow.policies.language import attention

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_module(folder: Path, *, dtype: str) -> Any:
    """The causal language model in ``folder``, in evaluation mode, with packed attention and no cache.

    Raises:
        ModelError: a file is damaged, a weight is missing, superfluous, of the wrong shape or not finite, or the
            architecture is not supported.
    """
    config = load_config(folder)
    auto: Any = AutoModelForCausalLM
    try:
        with quiet():
            module, report = auto.from_pretrained(
                folder,
                config=config,
                dtype=DTYPES[dtype],
                attn_implementation=attention.registered(),
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are in the report, which is not ignored
            )
    except SafetensorError as error:
        raise ModelError(f"a *.safetensors file in {folder} is damaged: {error}; copy or download it again") from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"transformers cannot load {folder} as a causal language model: {error}") from error
    _require_all(folder, report)
    _require_finite(folder, module)
    module.config.use_cache = False
    return module.eval()


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration in ``folder``.

    Raises:
        ModelError: damaged, unknown, or of a quantized model.
    """
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        reason = str(error).partition(" This could be because")[0].rstrip(".")
        raise ModelError(
            f"{folder / 'config.json'} is no configuration that transformers knows: {reason}; get an undamaged copy, "
            "or take a model that this version of transformers has"
        ) from error
    if getattr(config, "quantization_config", None):
        raise ModelError(
            f"{folder} holds quantized weights, which cannot be trained: convert them to float32 or bfloat16 first"
        )
    return config


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in ``folder``.

    Raises:
        ModelError: missing, damaged, or with more tokens than the model has.
    """
    vocabulary = load_config(folder).vocab_size
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError, json.JSONDecodeError) as error:
        raise ModelError(f"the tokenizer in {folder} cannot be loaded: {error}; copy its files there again") from error
    if len(tokenizer) > vocabulary:
        raise ModelError(
            f"the tokenizer in {folder} has {len(tokenizer)} tokens, the model {vocabulary}: take the model's own "
            "tokenizer"
        )
    return tokenizer


def context_tokens(config: PreTrainedConfig) -> int:
    """Longest sequence of the model, prompt and response together, in tokens.

    Raises:
        ModelError: the configuration does not say.
    """
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length <= 0:
        raise ModelError(
            f"config.json of this {config.model_type} model gives max_position_embeddings = {length!r}, expected the "
            "longest sequence in tokens: add it"
        )
    return length


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bar and no table of keys: what is wrong with the keys is an error of ours."""
    level, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()


def _require_all(folder: Path, report: dict[str, Any]) -> None:
    wrong = [
        f"{len(report[kind])} {words} ({_some(report[kind])})"
        for kind, words in (
            ("missing_keys", "missing"),
            ("unexpected_keys", "that the model has no place for"),
            ("mismatched_keys", "of another shape than config.json says"),
        )
        if report.get(kind)
    ]
    if report.get("error_msgs"):
        wrong.append(f"errors: {'; '.join(map(str, report['error_msgs']))}")
    if wrong:
        raise ModelError(
            f"the weights in {folder} do not fit its config.json: {', '.join(wrong)}. m2flow never fills in random "
            "weights or leaves some out: save the model again as the class that config.json names"
        )


def _some(keys: Any) -> str:
    names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in keys)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _require_finite(folder: Path, module: torch.nn.Module) -> None:
    bad = [name for name, weight in module.named_parameters() if not torch.isfinite(weight).all()]
    if bad:
        raise ModelError(f"weights in {folder} are infinite or not a number: {_some(bad)}; get an undamaged copy")


def load_generation(folder: Path) -> GenerationConfig:
    """What ``folder`` says about generation; derived from config.json where generation_config.json is missing.

    Raises:
        ModelError: damaged.
    """
    try:
        if (folder / "generation_config.json").is_file():
            return GenerationConfig.from_pretrained(folder, local_files_only=True)
        return GenerationConfig.from_model_config(load_config(folder))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'generation_config.json'} cannot be read: {error}; mend or remove it") from error
