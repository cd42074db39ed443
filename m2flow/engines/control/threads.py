# SPDX-License-Identifier: Apache-2.0
"""How many threads a network acts with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module

_WORTH_IT = 50_000_000
"""Multiplications of one answer below which threads wait for one another longer than they work, and take the cores from
the workers that step the environments."""


@contextmanager
def threads_for(module: Module, num_rows: int) -> Iterator[None]:
    """One thread where ``module`` answers ``num_rows`` states with little work; else as many as there were."""
    before = torch.get_num_threads()
    if num_rows * sum(parameter.numel() for parameter in module.parameters()) < _WORTH_IT:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
