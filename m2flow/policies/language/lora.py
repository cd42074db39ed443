# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters by peft: made, loaded, switched off, multiplied out, saved."""

import json
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from m2flow.errors import ModelError
from m2flow.policies.language.options import LoraConfig

ACTIVE = "default"
"""peft's name of the adapter that is trained."""
INITIAL = "initial"
"""peft's name of the frozen copy that training of a loaded adapter started from."""
WEIGHTS = "adapter_model.safetensors"
WHICH_LAYERS = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
WHICH_RANKS = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "lora_dropout", "init_lora_weights")
NOTES = ("inference_mode", "task_type", "peft_type", "peft_version", "base_model_name_or_path", "revision")
SUPPORTED = frozenset((*WHICH_LAYERS, *WHICH_RANKS, *NOTES, "auto_mapping"))
"""Options of a peft LoRA configuration that may differ from their defaults."""

log = logging.getLogger(__name__)


class Adapter:
    """The adapters inside a module. The base model's weights never change."""

    def __init__(self, module: Any, model: Any, *, continued: bool) -> None:
        self.module = module
        self._model = model
        self._continued = continued

    def initial(self) -> AbstractContextManager[None]:
        """Context in which the module is the policy that training started from. Without gradient only."""
        return self._loaded() if self._continued else self._model.disable_adapter()

    @contextmanager
    def _loaded(self) -> Iterator[None]:
        _activate(self._model, INITIAL)
        try:
            yield
        finally:
            _activate(self._model, ACTIVE)

    def save(self, path: Path) -> None:
        """Write the adapter alone, in peft format."""
        self._model.save_pretrained(path, selected_adapters=[ACTIVE])

    @torch.no_grad()
    def merged_state(self) -> dict[str, Tensor]:
        """The base model's state dict with the adapters multiplied out. The module itself stays as it is."""
        adapted = {name: layer for name, layer in self.module.named_modules() if isinstance(layer, LoraLayer)}
        return dict(_merged_tensors(self.module.state_dict(), adapted))


def create(module: Any, config: LoraConfig) -> Adapter:
    """Put new adapters into ``module``; at first they change nothing.

    Raises:
        ModelError: a target is no linear layer of the model, or is the output projection.
    """
    targets: Any = "all-linear" if config.targets == ("all-linear",) else list(config.targets)
    options = peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            model = peft.get_peft_model(module, options)
        except ValueError as error:
            raise ModelError(f"lora.targets {config.targets} do not fit {type(module).__name__}: {error}") from error
    _require_all_matched(module, config.targets)
    _require_bare_head(module)
    return Adapter(module, model, continued=False)


def load(module: Any, path: Path) -> Adapter:
    """Put the adapter in ``path`` into ``module``, to be trained further.

    Raises:
        ModelError: missing, damaged, of another kind than LoRA, or made for another model.
    """
    options = _require_loadable(path)
    try:
        model = peft.PeftModel.from_pretrained(
            module, str(path), adapter_name=ACTIVE, is_trainable=True, config=options
        )
        model.load_adapter(str(path), adapter_name=INITIAL, is_trainable=False)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelError(f"the adapter in {path} does not fit {type(module).__name__}: {error}") from error
    _require_same_keys(path, model)
    _require_bare_head(module)
    _activate(model, ACTIVE)
    return Adapter(module, model, continued=True)


def _activate(model: Any, name: str) -> None:
    """Switch adapters. peft switches gradients along with them; only the trained one's are ever on."""
    model.set_adapter(name, inference_mode=name != ACTIVE)


def _require_loadable(path: Path) -> peft.LoraConfig:
    """The adapter's configuration, without dropout.

    Raises:
        ModelError: something is missing, or the adapter does more than low-rank products beside linear layers.
    """
    if not (path / WEIGHTS).is_file():
        pickled = (path / "adapter_model.bin").is_file()
        raise ModelError(
            f"{path} has no {WEIGHTS}"
            + (
                "; adapter_model.bin is a pickle, which m2flow does not read: save it again with a present peft"
                if pickled
                else ""
            )
        )
    try:
        given = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        options = peft.PeftConfig.from_pretrained(str(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{path / 'adapter_config.json'} cannot be read: {error}") from error
    if not isinstance(options, peft.LoraConfig):
        raise ModelError(f"{path} is an adapter of type {given.get('peft_type')}, expected LORA")
    plain, used = peft.LoraConfig().to_dict(), options.to_dict()
    if asked := sorted(name for name in used.keys() - SUPPORTED if used[name] != plain[name]):
        raise ModelError(
            f"the adapter in {path} uses {', '.join(asked)}, which is not supported: plain LoRA layers only"
        )
    if options.lora_dropout:
        log.warning("adapter %s: its dropout of %s is set to 0, as for every policy", path, options.lora_dropout)
        options.lora_dropout = 0.0
    return options


def _require_same_keys(path: Path, model: Any) -> None:
    expected = set(peft.get_peft_model_state_dict(model, adapter_name=ACTIVE))
    with safe_open(path / WEIGHTS, framework="pt") as file:
        found = set(file.keys())
    if wrong := sorted(expected ^ found):
        raise ModelError(
            f"the adapter in {path} does not fit the model: {len(wrong)} weights are missing or superfluous "
            f"({', '.join(wrong[:3])}); give the base model that it was trained on"
        )


def _require_all_matched(module: nn.Module, targets: tuple[str, ...]) -> None:
    adapted = [name for name, layer in module.named_modules() if isinstance(layer, LoraLayer)]
    unmatched = [t for t in targets if t != "all-linear" and not any(f".{name}".endswith(f".{t}") for name in adapted)]
    if unmatched:
        linear = sorted({name.rpartition(".")[2] for name in adapted})
        raise ModelError(f"lora.targets {', '.join(unmatched)} match no layer; those that matched: {', '.join(linear)}")


def _require_bare_head(module: Any) -> None:
    """Log-probs are computed from the head's plain weight, and merging knows linear layers only."""
    if isinstance(module.get_output_embeddings(), LoraLayer):
        raise ModelError("an adapter on the output projection is not supported: leave it out of the targets")
    odd = [
        name
        for name, x in module.named_modules()
        if isinstance(x, LoraLayer) and not isinstance(x.get_base_layer(), nn.Linear)
    ]
    if odd:
        raise ModelError(f"adapters go on linear layers only, and {odd[0]} is none: leave it out of the targets")


def _merged_tensors(state: dict[str, Tensor], adapted: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        owner, _, leaf = name.partition(".base_layer.")
        if leaf == "weight":
            tensor = (tensor.float() + adapted[owner].get_delta_weight(ACTIVE).float()).to(tensor.dtype)
        yield (f"{owner}.{leaf}" if leaf else owner), tensor
