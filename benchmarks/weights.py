# SPDX-License-Identifier: Apache-2.0
"""Weights from a learner to a rollout in another process, against memcpy, in one run; and what a delta weighs.

python benchmarks/weights.py [--megabytes 500] [--rounds 9] [--every 16]

A version has moved when the rollout has the tensors and has told the learner a checksum of them that the learner found
right: publish, handle, receive, receipt and confirm are all in the time. ``memcpy`` copies one tensor of that size into
another, both touched before. Rounds of all kinds take turns, so that other work on the machine meets each of them.

The delta is that of a language model of 8 million parameters, trained in float32 by AdamW on random text until its
moments have settled, and sent as bfloat16: which share of the sent weights changes with one more step?
"""

import argparse
import multiprocessing
import secrets
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from m2flow.transport.peers import Server
from m2flow.weights.base import State
from m2flow.weights.checksum import checksum
from m2flow.weights.delta import apply, difference
from m2flow.weights.publisher import Publisher
from m2flow.weights.receiver import Receiver

SPAWN = multiprocessing.get_context("spawn")


def make_state(size: int) -> dict[str, torch.Tensor]:
    """Tensors of ``size`` bytes of bfloat16 altogether, of the sizes that a language model has."""
    width, left, state = 1024, size // 2, {}
    while left:
        rows = min(left // width or left, 4096 if len(state) % 7 else 1)
        shape = (rows, width) if left >= width else (left,)
        state[f"layers.{len(state)}.weight"] = torch.randn(shape).to(torch.bfloat16)
        left -= state[f"layers.{len(state) - 1}.weight"].numel()
    return state


def roll_out(connection: Connection, *, node: str | None, authkey: bytes) -> None:
    """Receive version after version."""
    torch.set_num_threads(1)
    receiver = Receiver("rollout", node=node, authkey=authkey)
    while (handle := connection.recv()) is not None:
        connection.send(receiver.receipt(handle, receiver.receive(handle)))


class Route:
    """A learner here and a rollout, in this process or another."""

    def __init__(self, *, every: int, node: str | None = None, is_here: bool = False) -> None:
        authkey = secrets.token_bytes(32)
        self.publisher, self.version = Publisher(is_shared=not is_here, every=every), 0
        self.publisher.address = Server(self.publisher.borrow, authkey=authkey).address
        self.receiver = Receiver("rollout", publisher=self.publisher) if is_here else None
        self.connection, there = SPAWN.Pipe()
        if not is_here:
            options = {"node": node, "authkey": authkey}
            SPAWN.Process(target=roll_out, args=(there,), kwargs=options, daemon=True).start()
            there.close()

    def move(self, state: State) -> None:
        """One version, there and confirmed."""
        handle = self.publisher.publish(state, self.version, receivers=["rollout"])
        self.version += 1
        if self.receiver is not None:
            loaded = self.receiver.receive(handle)
            assert all(loaded[name] is state[name] for name in state)
            self.publisher.confirm(self.receiver.receipt(handle, loaded))
        else:
            self.connection.send(handle)
            self.publisher.confirm(self.connection.recv())


def times(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round, after two rounds that do not count."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - begin)
    return {name: taken[2:] for name, taken in found.items()}


def report_routes(size: int, rounds: int, *, every: int) -> None:
    """Print each route against memcpy."""
    state = make_state(size)
    source, target = torch.ones(size // 4), torch.zeros(size // 4)
    here, near = Route(every=every, is_here=True), Route(every=every)
    near_full, far = Route(every=1), Route(every=every, node="another")
    calls = {
        "memcpy": lambda: target.copy_(source),
        "one slot, by reference": lambda: here.move(state),
        f"one node, shared memory, checksum of 1 byte in {every}": lambda: near.move(state),
        "one node, shared memory, checksum of every byte": lambda: near_full.move(state),
        "TCP on this machine": lambda: far.move(state),
        f"checksum alone, 1 byte in {every}": lambda: checksum(state, every),
        "checksum alone, every byte": lambda: checksum(state),
    }
    found = times(calls, rounds)
    for route in (near, near_full, far):
        route.connection.send(None)
    for name, taken in found.items():
        against = statistics.median(taken) / statistics.median(found["memcpy"])
        best = min(taken) / min(found["memcpy"])
        print(f"{name}: {statistics.median(taken) * 1e3:.1f} ms, {against:.2f} of memcpy (best rounds: {best:.2f})")


def make_model() -> LlamaForCausalLM:
    """8 million parameters."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=8192, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(shape)


def sent(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a rollout gets."""
    return {name: p.detach().to(torch.bfloat16, copy=True) for name, p in model.named_parameters()}


def step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer) -> None:
    """One step on random text."""
    ids = torch.randint(0, 8192, (4, 64))
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def report_deltas() -> None:
    """Print which share of bfloat16 weights one step changes, and what moves then."""
    model = make_model()
    full = sum(p.numel() * 2 for p in model.parameters())
    for rate in (1e-6, 3e-6, 1e-5):
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        for _ in range(10):
            step(model, optimizer)
        old = sent(model)
        step(model, optimizer)
        new = sent(model)
        changed = sum(int((old[name].view(torch.int16) != new[name].view(torch.int16)).sum()) for name in new)
        begin = time.perf_counter()
        delta = difference(old, new, base=0, version=1)
        taken = time.perf_counter() - begin
        moved = "more than half: all is sent" if delta is None else f"{delta.num_bytes:,} bytes"
        if delta is not None:
            apply(delta, old, version=0)
        share = changed / (full / 2)
        print(
            f"AdamW, rate {rate:g}: {share:.2%} of bfloat16 weights change; {moved} of {full:,} ({taken * 1e3:.0f} ms)"
        )


def report_adapter(rank: int = 16) -> None:
    """Print what an adapter on all linear layers of the same model weighs."""
    model = make_model()
    full = sum(p.numel() * 2 for p in model.parameters())
    linear = [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in name]
    state = {
        f"{i}.{side}": torch.zeros(rank, n, dtype=torch.bfloat16)
        for i, m in enumerate(linear)
        for side, n in (("a", m.in_features), ("b", m.out_features))
    }
    publisher = Publisher(every=1)
    handle = publisher.publish(state, 0, receivers=["rollout"])
    moved = sum(entry.size for entry in handle.layout)
    receiver = Receiver("rollout")
    publisher.confirm(receiver.receipt(handle, receiver.receive(handle)))
    print(f"adapter of rank {rank} alone: {moved:,} bytes of {full:,} ({moved / full:.1%})")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--every", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report_routes(options.megabytes * 10**6, options.rounds, every=options.every)
    report_adapter()
    report_deltas()


if __name__ == "__main__":
    main()
