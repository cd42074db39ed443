# SPDX-License-Identifier: Apache-2.0
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from m2flow.checkpoint import rng, snapshots
from m2flow.errors import CheckpointError


def _draw() -> list[Any]:
    return [random.random(), random.gauss(), np.random.rand(3).tolist(), np.random.randn(), torch.randn(3).tolist()]


def test_the_same_numbers_are_drawn_again():
    # An odd number of normal draws: each generator holds the second of a pair back, which belongs to its state.
    assert random.gauss() != np.random.randn()
    before = rng.capture()
    first = _draw()
    _draw()
    rng.restore(before)
    assert _draw() == first


def test_a_checkpoint_holds_it_exactly():
    saved = snapshots.snapshot(rng.capture())
    first = _draw()
    rng.restore(snapshots.restore(snapshots.Snapshot(json.loads(json.dumps(saved.tree)), saved.tensors)))
    assert _draw() == first


def test_random_states_of_devices_that_are_not_here_are_refused():
    state = {**rng.capture(), "cuda": [torch.get_rng_state()] * (torch.cuda.device_count() + 1)}
    with pytest.raises(CheckpointError, match="CUDA devices, here are"):
        rng.restore(state)


def test_an_incomplete_state_is_refused_before_anything_is_set():
    first = (rng.capture(), _draw())
    rng.restore(first[0])
    with pytest.raises(CheckpointError, match="lacks numpy, torch"):
        rng.restore({"python": random.getstate(), "cuda": []})
    assert _draw() == first[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_generators_are_captured_once_cuda_is_in_use():
    torch.zeros(1, device="cuda")
    before = rng.capture()
    assert len(before["cuda"]) == torch.cuda.device_count()
    first = torch.randn(4, device="cuda").tolist()
    rng.restore(before)
    assert torch.randn(4, device="cuda").tolist() == first
