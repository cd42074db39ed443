# SPDX-License-Identifier: Apache-2.0
"""Slots as Ray actors, on this machine or on all machines of a cluster."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from m2flow.errors import FlowError
from m2flow.runtime import devices
from m2flow.runtime.calls import Call
from m2flow.runtime.devices import SlotConfig
from m2flow.runtime.hosts import Host
from m2flow.runtime.slot import Slot
from m2flow.runtime.wire import Address


class _Process:
    """What a slot's actor runs. Calls arrive one by one; ``stay`` occupies a thread of its own until the end."""

    def __init__(self, index: int, hub: Address, *, config: SlotConfig, path: list[str], make_stream: Any) -> None:
        import torch

        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
        os.sched_setaffinity(0, config.cores)
        torch.set_num_threads(len(config.cores))
        self._index = index
        self._slot = Slot(index, hub, make_stream=make_stream, host=get_node_ip_address())

    def __repr__(self) -> str:
        """Ray writes it before every line that the process prints."""
        return f"slot {self._index}"

    def host(self, roles: Mapping[str, Any]) -> None:
        self._slot.host(roles)

    def submit(self, call: Call) -> None:
        self._slot.submit(call)

    def free(self, handles: Sequence[Any]) -> None:
        self._slot.free(handles)

    def stay(self) -> None:
        threading.Event().wait()


class _Actor:
    """The driver's end of a slot: calls go out in order, and nobody waits for them."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def host(self, roles: Mapping[str, Any]) -> None:
        ray.get(self._actor.host.remote(dict(roles)))

    def submit(self, call: Call) -> None:
        self._actor.submit.remote(call)

    def free(self, handles: Sequence[Any]) -> None:
        self._actor.free.remote(handles)


class RayHosts:
    """Starts slots with Ray.

    Args:
        address: of a cluster; left out, Ray is started on this machine for this run alone.
        num_slots: on each machine; left out, one for each GPU, or one of all cores.

    Raises:
        FlowError: nothing answers at the address.
    """

    def __init__(self, *, address: str | None = None, num_slots: int | None = None) -> None:
        self._num_slots = num_slots
        self._own = address is None
        self._actors: list[Any] = []
        self._closed = False
        # Work on a core is limited by each slot's affinity, not by what Ray counts.
        own: dict[str, Any] = {"address": "local", "num_cpus": 1, "include_dashboard": False}
        options: dict[str, Any] = own if address is None else {"address": address}
        try:
            ray.init(**options, log_to_driver=True, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise FlowError(
                f"no Ray cluster answers at {address} ({error}): start one there with `ray start --head`, or leave the "
                "address out to use this machine alone"
            ) from error

    @property
    def host(self) -> str:
        """This machine's address in the cluster."""
        return get_node_ip_address()

    def discover(self) -> list[SlotConfig]:
        """The slots of all machines, this one's first."""
        here = ray.get_runtime_context().get_node_id()
        others = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here)
        look: Any = ray.remote(num_cpus=0)(devices.discover)
        asked = [look.options(scheduling_strategy=_on(node)).remote(self._num_slots, node=node) for node in others]
        return [*devices.discover(self._num_slots, node=here), *(slot for found in ray.get(asked) for slot in found)]

    def start(
        self, slots: Sequence[SlotConfig], hub: Address, *, make_stream: Callable[..., Any], died: Callable[[int], None]
    ) -> list[Host]:
        """One actor for each slot, on its machine, with its cores and its GPU."""
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "concurrency_groups": {"stay": 1}}
        process: Any = ray.remote(**options)(_Process)
        for number, slot in enumerate(slots):
            placed = process.options(scheduling_strategy=_on(slot.node), runtime_env={"env_vars": _environment(slot)})
            self._actors.append(placed.remote(number, hub, config=slot, path=_import_path(), make_stream=make_stream))
        staying = [actor.stay.options(concurrency_group="stay").remote() for actor in self._actors]
        threading.Thread(target=self._watch, args=(staying, died), daemon=True, name="m2flow-watch").start()
        return [_Actor(actor) for actor in self._actors]

    def _watch(self, staying: list[Any], died: Callable[[int], None]) -> None:
        left = dict(zip(staying, range(len(staying)), strict=True))
        while left and not self._closed:
            ended, _ = ray.wait(list(left), num_returns=1)
            for ref in ended:
                number = left.pop(ref)
                if not self._closed:
                    died(number)

    def close(self) -> None:
        """End the slots' processes, and Ray where this run started it."""
        self._closed = True
        for actor in self._actors:
            ray.kill(actor)
        if self._own:
            ray.shutdown()


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


def _environment(slot: SlotConfig) -> dict[str, str]:
    threads = str(len(slot.cores))
    visible = {} if slot.gpu is None else {"CUDA_VISIBLE_DEVICES": str(slot.gpu)}
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **visible}


def _import_path() -> list[str]:
    """Where the script's own modules are found."""
    return [os.path.abspath(entry or os.curdir) for entry in sys.path]
