# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing: each layer runs again in the backward pass, so that its activations need no memory."""

from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from m2flow.errors import ModelError
from m2flow.policies.language import probe


def switch(module: Any, enabled: bool) -> None:
    """Turn activation checkpointing of a Hugging Face model on or off.

    Raises:
        ModelError: the model has no layers for it, or would not be the same model with it.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not (layers and module.supports_gradient_checkpointing):
        raise ModelError(f"{type(module).__name__} has no activation checkpointing: turn it off")
    if not enabled:
        module.gradient_checkpointing_disable()
    else:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in layers:
        # A layer checkpoints only in training mode. Its own flag is set and not the whole model's, which would turn
        # dropout on in what lies inside.
        layer.training = enabled
    if enabled:
        probe.require_packable(module)
