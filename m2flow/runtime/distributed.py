# SPDX-License-Identifier: Apache-2.0
"""The runtime of many slots: calls are issued to them at once and run as their items arrive.

The driver, which is the process of the user's script, holds the hub and issues calls; payload does not pass through it
unless the script reads it. What starts the slots' processes (Ray) is behind ``Hosts``.
"""

import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m2flow.errors import CheckpointError, FlowError, M2flowError
from m2flow.observe.spans import Span
from m2flow.runtime import placement, saved
from m2flow.runtime.calls import Call, ItemRef, Mode, RoleRef, StreamRef, mode_of
from m2flow.runtime.context import Context
from m2flow.runtime.hosts import Host, Hosts
from m2flow.runtime.hub import DRIVER, Handle, Hub, lost
from m2flow.runtime.inline import defines, require_both_halves
from m2flow.runtime.items import Items
from m2flow.runtime.placement import Plan, StageConfig
from m2flow.runtime.saved import LINKS, RNG
from m2flow.runtime.wire import Server
from m2flow.transport import peers
from m2flow.transport.arena import Arena, Key
from m2flow.transport.reader import Reader


@dataclass(frozen=True)
class _Item:
    """An argument that is too large to travel with its call."""

    value: Any


@dataclass(kw_only=True)
class _Running:
    """A call that has not ended on all its slots."""

    call: Call
    left: set[int]
    given: list[Any]
    """Streams among its arguments, which it keeps."""


class Distributed:
    """Runs roles on slots. ``Inline`` has the same methods for one process.

    Args:
        hosts: starts the slots.
        pins: where roles run, as far as it is set by hand.
        make_stream: the flow's ``Stream``.
        spans: is given what the slots did and when.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        pins: Mapping[str, StageConfig],
        make_stream: type,
        spans: Callable[[int, Any], None],
    ) -> None:
        self.roles: dict[str, Any] = {}
        self.plan: Plan | None = None
        """Made at the first call."""
        self._hosts, self._pins, self._make_stream, self._spans = hosts, dict(pins), make_stream, spans
        self._slots: list[Host] = []
        self._hub = Hub(self._release)
        methods = {"put": self._hub.put, "claim": self._hub.claim, "done": self._done, "more": self._more}
        self._server = Server(methods, host=hosts.host)
        key = self._server.address.key
        self._arena = Arena()
        self._blocks = peers.Server(self._arena.borrow, host=hosts.host, authkey=key)
        self._arena.address = self._blocks.address
        self._returned: queue.SimpleQueue[Key] = queue.SimpleQueue()
        self._reader = Reader(self._arena, on_release=self._returned.put, authkey=key)
        self._issuing = threading.RLock()
        """Held while a call gets its number and goes to its slots, so that all slots see calls in one order."""
        self._changed = threading.Condition()
        self._running: dict[int, _Running] = {}
        self._error: M2flowError | None = None
        self._num_calls = 0
        self._links: dict[tuple[str, str], str] = {}
        """Roles that were given to a method of another, such as a learner to a rollout's ``load_weights``."""
        self._closed = False
        self._context: Context | None = None
        self._asked: Counter[tuple[int, int, int]] = Counter()
        self._further: dict[tuple[int, int, int], StreamRef] = {}
        self._drawing = threading.Lock()

    def add(self, name: str, role: Any) -> None:
        """Place ``role`` on slots under ``name``; all roles are added before the first call.

        Raises:
            FlowError: it has only one of ``state`` and ``load_state``, or calls were issued already.
        """
        require_both_halves(name, role)
        if self.plan is not None:
            raise FlowError(
                f"role '{name}' comes after the first call: add all roles first, so that those which share a policy "
                "come to share it on their slots too"
            )
        self.roles[name] = role

    def pin(self, role: str, stage: StageConfig) -> None:
        """Set by hand where ``role`` runs.

        Raises:
            FlowError: the plan was made already.
        """
        if self.plan is not None:
            raise FlowError(f"cannot pin '{role}': the first call has been issued and the plan is made; pin before it")
        self._pins[role] = stage

    def start(self, context: Context) -> Plan:
        """Plan, start the slots and send the roles there; done by the first call.

        Raises:
            ConfigError: a pin is not possible.
        """
        if self.plan is not None:
            return self.plan
        self._context = context
        limits = {name: role.max_slots if defines(role, "max_slots") else 1 for name, role in self.roles.items()}
        found = self._hosts.discover()
        self.plan = placement.make(found, limits, pins=self._pins)
        address = self._server.address
        self._slots = self._hosts.start(found, address, make_stream=self._make_stream, died=self._died)
        for number, slot in enumerate(self._slots):
            placed = [name for name, stage in self.plan.stages.items() if number in stage.slots]
            # What shares a policy comes together; a role whose slots work as one cuts its policy up, and comes alone.
            slot.host({name: self.roles[name] for name in placed if not self._joins(name)})
            for name in filter(self._joins, placed):
                slot.host({name: self.roles[name]})
        self._issue(RNG, "seed", mode="each")
        for name in filter(self._joins, self.roles):
            meeting = self._issue(RNG, "meeting", mode="first", slots=self._slots_of(name)[:1])
            self._issue(name, "join", mode="everywhere", args=(next(iter(meeting)),))
        return self.plan

    def _joins(self, name: str) -> bool:
        """Whether the role's slots work as one, so that none of them has it whole."""
        return len(self._slots_of(name)) > 1 and defines(self.roles[name], "join")

    def _slots_of(self, name: str) -> tuple[int, ...]:
        assert self.plan is not None
        return tuple(range(len(self._slots))) if name == RNG else self.plan.stages[name].slots

    def call(
        self, name: str, method: str, *, args: Sequence[Any], kwargs: Mapping[str, Any], context: Context
    ) -> Items:
        """Issue one call and return its items at once.

        Raises:
            M2flowError: what an earlier call failed with.
        """
        self.start(context)
        self._raise()
        self._context = context
        given = [other for other, role in self.roles.items() for value in args if role is value]
        if given and len(args) == 1 and not kwargs:
            self._links[name, method] = given[0]
        return self._issue(name, method, mode=mode_of(self.roles[name], method), args=args, kwargs=kwargs)

    def _issue(
        self,
        name: str,
        method: str,
        *,
        mode: Mode,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        slots: tuple[int, ...] = (),
    ) -> Items:
        with self._issuing:
            return self._issue_next(name, method, mode=mode, args=args, kwargs=kwargs or {}, slots=slots)

    def _issue_next(
        self,
        name: str,
        method: str,
        *,
        mode: Mode,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        slots: tuple[int, ...],
    ) -> Items:
        slots = slots or self._slots_of(name)
        slots = slots[:1] if mode == "first" else slots
        given: list[Any] = []
        is_shared = mode == "share" and len(slots) > 1
        refs = [self._ref(value, slots, given=given, is_shared=is_shared) for value in args]
        named = {k: self._ref(v, slots, given=given, is_shared=is_shared) for k, v in kwargs.items()}
        bound = self.plan.stages[name].bound if self.plan and name in self.plan.stages else 0
        items = self._items(self._hub.open(producers=len(slots), bound=bound))
        assert self._context is not None
        with self._changed:
            self._num_calls += 1
            call = Call(
                number=self._num_calls,
                role=name,
                method=method,
                args=tuple(refs),
                kwargs=named,
                mode=mode,
                output=items.number,
                slots=slots,
                seed=self._context.seed,
                iteration=self._context.iteration,
                num_iterations=self._context.num_iterations,
            )
            self._hub.hold(items.number)
            self._running[call.number] = _Running(call=call, left=set(slots), given=given)
        for slot in slots:
            self._slots[slot].submit(call)
        return items

    def _ref(self, value: Any, slots: Sequence[int], *, given: list[Any], is_shared: bool) -> Any:
        """What travels in place of an argument. ``given`` collects the streams behind it."""
        if is_shared and isinstance(value, list | tuple):
            value = self._make_stream(value, origin="a list")
        if isinstance(value, _Item):
            return ItemRef(stream=self._stream_ref(self._make_stream([value.value], origin="the run"), given))
        if isinstance(value, self._make_stream):
            return self._stream_ref(value, given)
        found = [name for name, role in self.roles.items() if role is value]
        return self._role_ref(found[0], slots, given=given) if found else value

    def _stream_ref(self, stream: Any, given: list[Any]) -> StreamRef:
        if not isinstance(stream.items, Items):
            handles = [(DRIVER, self._arena.write(item)) for item in stream.items]
            filled = self._items(self._hub.filled(handles))
            stream = self._make_stream(filled, origin=stream.origin, refill=stream.more if stream.can_grow else None)
        given.append(stream)
        stage = self.plan.stages.get(stream.origin.partition(".")[0]) if self.plan else None
        return StreamRef(
            number=stream.items.number,
            origin=stream.origin,
            can_grow=stream.can_grow,
            chunk=stage.chunk if stage else StageConfig().chunk,
        )

    def _role_ref(self, name: str, slots: Sequence[int], *, given: list[Any]) -> RoleRef:
        here = () if self._joins(name) else tuple(set(self._slots_of(name)) & set(slots))
        if set(slots) <= set(here):
            return RoleRef(name=name, here=here, snapshot=None)
        if not defines(self.roles[name], "snapshot"):
            raise FlowError(
                f"role '{name}' is given to a role on another slot: let it have a method `snapshot` that returns what "
                "others may see of it, or pin both to the same slot"
            )
        items = self._issue(name, "snapshot", mode=mode_of(self.roles[name], "snapshot"))
        ref = self._stream_ref(self._make_stream(items, origin=f"{name}.snapshot"), given)
        return RoleRef(name=name, here=here, snapshot=ItemRef(stream=ref))

    def _items(self, number: int) -> Items:
        return Items(self._hub, number, read=self._read)

    def _read(self, handle: Handle) -> Any:
        item = self._reader.read(handle[1])
        self._hub.returned([self._returned.get() for _ in range(self._returned.qsize())])
        return item

    def _done(
        self, number: int, slot: int, *, error: M2flowError | None, spans: Sequence[Span], returned: Sequence[Key]
    ) -> None:
        """A slot has ended a call."""
        self._spans(slot, spans)
        self._hub.returned(returned)
        with self._changed:
            running = self._running[number]
            self._error = self._error or error
            running.left.discard(slot)
            is_last = not running.left
            if is_last:
                del self._running[number]
            self._changed.notify_all()
        if error is not None:
            self._hub.fail(running.call.output, error)
        self._hub.finish(running.call.output)
        if is_last:
            self._hub.drop(running.call.output)

    def _more(self, ref: StreamRef, *, call: int, slot: int, num_items: int) -> StreamRef:
        """Further items for a call that runs: drawn once, and the same for each slot that asks."""
        with self._drawing:
            self._asked[call, ref.number, slot] += 1
            key = (call, ref.number, self._asked[call, ref.number, slot])
            if key not in self._further:
                given = self._running[call].given
                stream = next(stream for stream in given if stream.items.number == ref.number)
                self._further[key] = self._stream_ref(stream.more(num_items), given)
            return self._further[key]

    def _died(self, slot: int) -> None:
        """The process of a slot has ended: everything that waits for it fails."""
        if self._closed:
            return
        with self._changed:
            failed = [running.call for running in self._running.values() if slot in running.left]
            self._error = self._error or lost(slot, [f"{call.role}.{call.method}" for call in failed])
            self._changed.notify_all()
        for call in failed:
            self._hub.fail(call.output, self._error)

    def _release(self, handles: Sequence[Handle]) -> None:
        """Give the memory of items back to those who wrote them."""
        if self._closed:
            return
        owners: dict[int, list[Handle]] = defaultdict(list)
        for handle in handles:
            owners[handle[0]].append(handle)
        for handle in owners.pop(DRIVER, ()):
            self._arena.free(handle[1].key)
        for owner, own in owners.items():
            self._slots[owner].free([handle for _, handle in own])

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Until no call runs.

        Raises:
            M2flowError: what a call failed with.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._running or self._error is not None)
        self._raise()

    def metrics(self) -> dict[str, float]:
        """See ``Inline.metrics``; counts of a role's slots add up."""
        asked = [self._issue(name, "metrics", mode="each") for name in self._having("metrics")]
        found: dict[str, float] = defaultdict(float)
        for _, counted in (item for items in asked for item in items):
            for name, count in counted.items():
                found[name] += count
        return dict(found)

    def _having(self, method: str) -> list[str]:
        return [name for name, role in self.roles.items() if self.plan and defines(role, method)]

    def state(self) -> dict[str, Any]:
        """The state of every role, and of the slots' random numbers."""
        links = [[*method, other] for method, other in self._links.items()]
        return {LINKS: links, **{name: self._state_of(name) for name in (RNG, *self._having("state"))}}

    def _state_of(self, name: str) -> Any:
        found = dict(self._issue(name, "state", mode="each"))
        return saved.joined([found[slot] for slot in self._slots_of(name)])

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Give each role its state back; one whose slots work as one may have another number of them than before.

        Raises:
            CheckpointError: the roles with state, or their slots, are not those that were saved.
        """
        own = set(self._having("state"))
        saved.require_same_roles(own, state)
        for name in [*sorted(own), *(state.keys() & {RNG})]:
            self._load_state_of(name, state[name])
        for name, method, other in state.get(LINKS, ()):
            # What one role had of another is no part of its state: it is given it again.
            self._issue(name, method, mode=mode_of(self.roles[name], method), args=(self.roles[other],))
        self.wait()

    def _load_state_of(self, name: str, state: Any) -> None:
        slots = self._slots_of(name)
        can_divide = name != RNG and defines(self.roles[name], "join")
        states = saved.divided(state, len(slots)) if can_divide else saved.parts(state)
        if len(states) != len(slots) and name != RNG:
            raise CheckpointError(
                f"the checkpoint has '{name}' on {len(states)} slots, the plan on {len(slots)}: pin it to as many"
            )
        for slot, part in zip(slots, states, strict=False):
            self._issue(name, "load_state", mode="first", args=(_Item(part),), slots=(slot,))

    def close(self) -> None:
        """End the slots' processes."""
        self._closed = True
        self._hosts.close()
        self._server.close()
        self._blocks.close()
        self._reader.close()
        self._arena.close()
