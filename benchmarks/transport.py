# SPDX-License-Identifier: Apache-2.0
"""Items between two processes against memcpy, and small items against Ray's own queue, in one run.

python benchmarks/transport.py [--megabytes 64] [--rounds 15] [--no-ray]

A batch has moved when the reader can use every byte of it. The time of a batch therefore runs from before ``write``
until the reader, which got the handle through a socket, has its arrays, which lie in the writer's memory: no further
copy follows, as none follows a memcpy. That the reader then sees each byte right is checked outside of the time.
Rates are medians of rounds in which memcpy and the transport take turns, so that other work on the machine meets both.
"""

import argparse
import logging
import multiprocessing
import secrets
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

from m2flow.data.samples import Group, Prompt, Sample
from m2flow.transport.arena import Arena, Key
from m2flow.transport.peers import Server
from m2flow.transport.reader import Reader

SPAWN = multiprocessing.get_context("spawn")
CHUNK = 64


@dataclass
class Batch:
    """A few large arrays."""

    number: int
    arrays: list[np.ndarray]


def make_group(index: int, rng: np.random.Generator) -> Group:
    """Eight answers of 64 tokens to one prompt: what a rollout sends most."""
    samples = [
        Sample(
            index=k,
            token_ids=rng.integers(0, 49152, 64),
            logprobs=rng.random(64, np.float32),
            sampled_logprobs=rng.random(64, np.float32),
            entropies=rng.random(64, np.float32),
            versions=np.zeros(64, np.int32),
            text="an answer",
            finish_reason="stop",
        )
        for k in range(8)
    ]
    return Group(prompt=Prompt(id=str(index), text="?"), prompt_ids=rng.integers(0, 49152, 60), samples=samples)


def read_batches(connection: Connection, *, node: str | None, authkey: bytes) -> None:
    """Receive handles; answer when the arrays are there, then with the sum of all their words and the freed keys."""
    released: list[Key] = []
    reader = Reader(on_release=released.append, node=node, authkey=authkey)
    while (handle := connection.recv()) is not None:
        batch = reader.read(handle)
        connection.send(len(batch.arrays))
        connection.send(sum(int(array.sum()) for array in batch.arrays))
        del batch
        connection.send(released[:])
        released.clear()


def batch_times(size: int, rounds: int, *, node: str | None) -> tuple[list[float], list[float]]:
    """Seconds of a memcpy and of a batch of ``size`` bytes, round by round."""
    here, there = SPAWN.Pipe()
    authkey = secrets.token_bytes(32)
    options = {"node": node, "authkey": authkey}
    process = SPAWN.Process(target=read_batches, args=(there,), kwargs=options, daemon=True)
    process.start()
    copies, moves, source, target = [], [], np.arange(size // 8), np.ones(size // 8, np.int64)
    with Arena() as arena:
        server = Server(arena.borrow, authkey=authkey)
        arena.address = server.address
        for number in range(rounds + 2):
            source[0] = number
            begin = time.perf_counter()
            np.copyto(target, source)
            copies.append(time.perf_counter() - begin)
            moves.append(move(arena, Batch(number, np.split(source, 4)), connection=here))
        here.send(None)
        process.join()
        server.close()
    return copies[2:], moves[2:]


def move(arena: Arena, batch: Batch, *, connection: Connection) -> float:
    """Seconds until the other process has the batch."""
    begin = time.perf_counter()
    handle = arena.write(batch)
    arena.lease(handle.key)
    connection.send(handle)
    connection.recv()
    taken = time.perf_counter() - begin
    assert connection.recv() == sum(int(array.sum()) for array in batch.arrays), "wrong bytes"
    arena.free(handle.key)
    for key in connection.recv():
        arena.release(key)
    assert not arena.num_items
    return taken


def ask_for_items(result: Connection, *, address: str, authkey: bytes) -> None:
    """A consumer: ask for chunks of handles, one ahead, read them, and say how many came in which time."""
    reader, count, begin = Reader(), 0, 0.0
    with Client(address, authkey=authkey) as connection:
        for _ in range(2):
            connection.send([])
        while handles := connection.recv():
            begin = begin or time.perf_counter()
            count += len([reader.read(handle) for handle in handles])
            connection.send([handle.key for handle in handles])
    result.send((count, time.perf_counter() - begin))


def answer(arena: Arena, items: list[Any], *, connection: Connection) -> None:
    """Wait for a consumer to ask, free what it has read, and send it the handles of more."""
    for key in connection.recv():
        arena.free(key)
    connection.send([arena.write(item) for item in items])


def items_per_s(items: list[Any]) -> float:
    """How many items a second go from this process to another, written, asked for, read and freed."""
    authkey = secrets.token_bytes(32)
    here, there = SPAWN.Pipe()
    with Arena() as arena, Listener(None, "AF_UNIX", authkey=authkey) as listener:
        options = {"address": listener.address, "authkey": authkey}
        process = SPAWN.Process(target=ask_for_items, args=(there,), kwargs=options, daemon=True)
        process.start()
        with listener.accept() as connection:
            for begin in range(0, len(items) + CHUNK, CHUNK):
                answer(arena, items[begin : begin + CHUNK], connection=connection)
            count, taken = here.recv()
        assert count == len(items), f"{count} of {len(items)} arrived"
        process.join()
    return count / taken


def ray_items_per_s(items: list[Any]) -> tuple[float, float]:
    """The same through ray.util.queue: one at a time, and in its own batches of ``CHUNK``."""
    import ray
    from ray.util.queue import Queue

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    queue = Queue()

    def consume(count: int, chunk: int) -> tuple[int, float]:
        found, begin = 0, 0.0
        while found < count:
            got = queue.get_nowait_batch(chunk) if chunk > 1 and queue.qsize() >= chunk else [queue.get()]
            begin = begin or time.perf_counter()
            found += len(got)
        return found, time.perf_counter() - begin

    rates = []
    for chunk in (1, CHUNK):
        few = items[: min(len(items), 300 * chunk) // chunk * chunk]
        result = ray.remote(consume).remote(len(few), chunk)
        for begin in range(0, len(few), chunk):
            queue.put_nowait_batch(few[begin : begin + chunk]) if chunk > 1 else queue.put(few[begin])
        count, taken = ray.get(result)
        rates.append(count / taken)
    ray.shutdown()
    return rates[0], rates[1]


def main() -> None:
    """Print all rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-ray", action="store_true")
    options = parser.parse_args()
    size = options.megabytes * 10**6
    for name, node in (("shared memory", None), ("TCP on this machine", "another")):
        copies, moves = batch_times(size, options.rounds, node=node)
        copy, taken = statistics.median(copies), statistics.median(moves)
        print(
            f"{options.megabytes} MB, {name}: {size / taken / 1e9:.2f} GB/s, memcpy {size / copy / 1e9:.2f} GB/s: "
            f"{copy / taken:.2f} of memcpy (best rounds: {min(copies) / min(moves):.2f})"
        )
    rng = np.random.default_rng(0)
    numbers, groups = list(range(19_200)), [make_group(i, rng) for i in range(1920)]
    for name, items in (("numbers", numbers), ("groups of 8 x 64 tokens", groups)):
        rate = items_per_s(items)
        print(f"{name}: {rate:,.0f} items/s", flush=True)
        if not options.no_ray:
            single, batched = ray_items_per_s(items)
            print(
                f"    Ray's queue {single:,.0f} (here {rate / single:.0f} times as many), "
                f"in its own batches of {CHUNK} {batched:,.0f} ({rate / batched:.1f} times)"
            )


if __name__ == "__main__":
    main()
