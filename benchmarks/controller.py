# SPDX-License-Identifier: Apache-2.0
"""What it costs to direct a run: issuing an iteration's calls to 1,000 slots, and the driver's share of a real run.

python benchmarks/controller.py [--slots 1000] [--run]

The slots of the first part are simulated: they take calls, and answer those of the driver at once. ``--run`` adds the
second part: GRPO on the tiny model on two slots of this machine with Ray; the driver's processor time is set against
the time of its iterations.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from m2flow.flow.rollout import Rollout
from m2flow.flow.run import CheckpointConfig, Run, RunConfig, RuntimeConfig
from m2flow.flow.stream import Stream
from m2flow.observe.recorder import ObserveConfig
from m2flow.runtime.calls import Call, everywhere
from m2flow.runtime.context import Context
from m2flow.runtime.devices import SlotConfig
from m2flow.runtime.distributed import Distributed
from m2flow.runtime.hosts import Host
from m2flow.runtime.wire import Address


class Simulated:
    """A slot that does nothing."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def host(self, roles: Mapping[str, Any]) -> None:
        """Forget them."""

    def submit(self, call: Call) -> None:
        """Remember the call."""
        self.calls.append(call)

    def free(self, handles: Sequence[Any]) -> None:
        """There is no memory."""


class SimulatedHosts:
    """``Hosts`` of slots that do nothing."""

    def __init__(self, number: int) -> None:
        self.slots = [Simulated() for _ in range(number)]

    host = "127.0.0.1"

    def discover(self) -> list[SlotConfig]:
        """As many as asked for."""
        return [SlotConfig(kind="simulated", cores=(0,), memory_bytes=0) for _ in self.slots]

    def start(
        self, slots: Sequence[SlotConfig], hub: Address, *, make_stream: Any, died: Callable[[int], None]
    ) -> list[Host]:
        """Nothing to start."""
        return list(self.slots)

    def close(self) -> None:
        """Nothing to end."""


class Role:
    """Stands for rollout, reward and learner: only its methods' kinds matter."""

    max_slots: int | None = None

    def items(self, given: Iterable[Any]) -> Iterator[Any]:
        """As ``generate`` and ``score``."""
        yield from given

    @everywhere
    def all(self, given: Any) -> None:
        """As ``update`` and ``load_weights``."""

    @everywhere
    def snapshot(self) -> int:
        """What a rollout is given of a learner."""
        return 0


def issue_seconds(num_slots: int, rounds: int) -> list[float]:
    """Seconds to issue the calls of one iteration, of each round."""
    hosts, roles = SimulatedHosts(num_slots), {name: Role() for name in ("rollout", "reward", "learner")}
    runtime = Distributed(hosts, pins={}, make_stream=Stream, spans=lambda slot, spans: None)
    for name, role in roles.items():
        runtime.add(name, role)
    context = Context(seed=0, iteration=0, num_iterations=1, span=lambda name: None)  # pyright: ignore

    def call(name: str, method: str, *, given: Any) -> Stream[Any]:
        items = runtime.call(name, method, args=(given,), kwargs={}, context=context)
        return Stream(items, origin=f"{name}.{method}")

    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        groups = call("rollout", "items", given=Stream(list(range(2 * num_slots)), origin="prompts"))
        call("learner", "all", given=call("reward", "items", given=groups))
        call("rollout", "all", given=roles["learner"])
        seconds.append(time.perf_counter() - begin)
    runtime.close()
    return seconds


def driver_share(iterations: int) -> float:
    """Processor time of the driver over the time of iterations, the first two left out."""
    import m2flow as mf

    config = RunConfig(
        iterations=iterations,
        run_dir=Path(tempfile.mkdtemp()),
        runtime=RuntimeConfig(kind="ray", slots=2),
        observe=ObserveConfig(quiet=True),
        checkpoint=CheckpointConfig(every=0),
    )
    policy, sampling = mf.Llm(mf.Llm.Config()), mf.SamplingConfig(max_new_tokens=8)
    walls, cpus = [], []
    with Run(config) as run:
        rollout = run.role(Rollout(policy, sampling=sampling))
        reward = run.role(mf.MathReward())
        learner = run.role(mf.Learner(policy, sampling=sampling))
        for prompts in run.iterations(mf.MathPrompts(), 128):
            walls.append(time.perf_counter())
            cpus.append(time.process_time())
            stats = learner.update(reward.score(rollout.generate(prompts)))
            rollout.load_weights(learner)
            run.log(stats)
    return (cpus[-1] - cpus[2]) / (walls[-1] - walls[2])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    seconds = issue_seconds(options.slots, options.rounds)
    print(
        f"{options.slots} simulated slots: an iteration is issued in {1e3 * statistics.median(seconds):.1f} ms "
        f"(median of {options.rounds}; worst {1e3 * max(seconds):.1f} ms)"
    )
    if options.run:
        print(f"driver of GRPO on 2 slots: {driver_share(12):.1%} of an iteration")


if __name__ == "__main__":
    main()
