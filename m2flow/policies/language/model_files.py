# SPDX-License-Identifier: Apache-2.0
"""From the name of a model to a folder that holds all of it, or an error that says what is missing."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from m2flow.errors import ModelError
from m2flow.policies.language import smollm2

TINY = Path(__file__).parent / "tiny"
"""The model that ships in the package; examples/reasoning/pretrain_tiny.py made it."""
DOWNLOADED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Weights as safetensors, configuration and tokenizer; nothing that is unpickled."""
NOT_DOWNLOADED = ("*/*", "consolidated*")
"""Second copies of the weights in other formats."""
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def find(model: str) -> Path:
    """The folder of ``model``: ``tiny``, ``smollm2``, a path, or a name on the Hugging Face hub.

    Raises:
        ModelError: it is not there, or is incomplete.
    """
    if model == "tiny":
        return TINY
    if model == "smollm2":
        return smollm2.folder()
    path = Path(model).expanduser()
    if not path.exists():
        if looks_like_path(model):
            raise ModelError(f"there is no model folder {path}: check the path, which is relative to {Path.cwd()}")
        path = _download(model)
    require_complete(path)
    return path


def looks_like_path(model: str) -> bool:
    """Whether ``model`` cannot be a hub name, which is ``name`` or ``owner/name``."""
    return model.startswith(("/", ".", "~")) or model.count("/") > 1 or "\\" in model


def _download(model: str) -> Path:
    try:
        return Path(snapshot_download(model, allow_patterns=list(DOWNLOADED), ignore_patterns=list(NOT_DOWNLOADED)))
    except HFValidationError as error:
        raise ModelError(f"'{model}' is neither a folder nor a hub name: {error}") from None
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model '{model}' is no local folder, and the hub cannot be reached: give the path of a folder with "
            "config.json, *.safetensors and tokenizer files, or use 'tiny', which ships with m2flow, or go online"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"model '{model}' is no local folder, and the hub did not give it: {error}; "
            "check the name, or log in with `hf auth login` where the model is gated"
        ) from error


def require_complete(folder: Path) -> None:
    """Check that ``folder`` holds configuration, safetensors and tokenizer.

    Raises:
        ModelError: names what is missing.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is a file, expected a folder with config.json, *.safetensors and tokenizer files")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it is no Hugging Face model folder{_contents(folder)}")
    _require_safetensors(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"{folder} has no tokenizer ({' or '.join(TOKENIZER_FILES)}): copy the tokenizer's files of the model "
            "beside its weights; AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes them"
        )


def _require_safetensors(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"{folder} has its weights in {pickled[0]}, a pickle, which can run any code when it is read; m2flow reads "
            "safetensors only. Where you trust the file, convert it once: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"
        )
    raise ModelError(f"{folder} has no *.safetensors, so no weights{_contents(folder)}")


def _contents(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return "; the folder is empty"
    return f"; it holds {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
