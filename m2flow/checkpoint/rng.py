# SPDX-License-Identifier: Apache-2.0
"""The random generators that a process shares: Python's, NumPy's, PyTorch's, and those of its CUDA devices."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from m2flow.errors import CheckpointError


def seed(number: int) -> None:
    """Begin anew, every generator at ``number``."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def capture() -> dict[str, Any]:
    """Their states, in a form that a checkpoint holds."""
    # Asking an unused CUDA for its state would make a context, and take memory, on every device.
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def restore(state: Mapping[str, Any]) -> None:
    """Go on from what ``capture`` returned.

    Raises:
        CheckpointError: it has the states of more CUDA devices than there are, or is incomplete.
    """
    if missing := [key for key in ("python", "numpy", "torch", "cuda") if key not in state]:
        raise CheckpointError(
            f"the state of the random generators lacks {', '.join(missing)}: use an intact checkpoint"
        )
    if len(state["cuda"]) > torch.cuda.device_count():
        raise CheckpointError(
            f"the checkpoint has random states of {len(state['cuda'])} CUDA devices, here are "
            f"{torch.cuda.device_count()}: resume on a machine with as many"
        )
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for device, generator in enumerate(state["cuda"]):
        torch.cuda.set_rng_state(generator, device)
