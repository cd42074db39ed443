# SPDX-License-Identifier: Apache-2.0
"""All ranks of a process group have the source's weights afterwards, or all know that they have not."""

from pathlib import Path

import torch
import torch.distributed as dist
from spawned import child

from m2flow.errors import WeightsError
from m2flow.weights.broadcast import broadcast


def make_state(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 5, generator=generator),
        "b": torch.randn(1001, generator=generator).to(torch.bfloat16),
        "c": torch.randn(7, 9, generator=generator).t(),
        "d": torch.tensor(seed),
        "e": torch.empty(0),
    }


def error_of(state: dict[str, torch.Tensor]) -> str:
    try:
        broadcast(state, 1)
    except WeightsError as error:
        return str(error)
    return ""


def take_part(connection, store: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    results = []
    for bucket_bytes in (1, 100, 2**20):
        state = make_state(rank)
        version = broadcast(state, 5 + rank, source=1, bucket_bytes=bucket_bytes)
        results.append((version, all(torch.equal(state[name], sent) for name, sent in make_state(1).items())))
    connection.send((results, error_of(make_state(0) | ({"f": torch.zeros(1)} if rank else {}))))
    connection.recv()


def test_every_rank_has_the_weights_of_the_source_or_an_error(tmp_path: Path):
    store = str(tmp_path / "store")
    with child(take_part, store, 0) as (first, _), child(take_part, store, 1) as (second, _):
        for connection in (first, second):
            results, error = connection.recv()
            assert results == [(6, True)] * 3
            assert "1 of 2 ranks have tensors of other names, dtypes or shapes than rank 0" in error
