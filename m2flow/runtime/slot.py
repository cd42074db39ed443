# SPDX-License-Identifier: Apache-2.0
"""A slot: one process with some cores or a GPU, and the copies of the roles that are placed on it.

Calls of one role run in the order in which they were issued, each role on a thread of its own; a lock lets one of them
use the slot at a time. It knows nothing of Ray: anything that starts a process and calls ``submit`` will do.
"""

import queue
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from m2flow.checkpoint import rng
from m2flow.errors import FlowError, M2flowError
from m2flow.observe.spans import Spans
from m2flow.runtime.calls import Call, ItemRef, RoleRef, StreamRef, gives_items
from m2flow.runtime.context import Context
from m2flow.runtime.inline import defines
from m2flow.runtime.saved import RNG
from m2flow.runtime.turns import Turns
from m2flow.runtime.wire import Address, Caller, Disconnected, outcome
from m2flow.transport import peers
from m2flow.transport.arena import Arena, Key
from m2flow.transport.reader import Reader

MakeStream = Callable[..., Any]
"""The flow's ``Stream``: items, origin, refill."""


class Process:
    """A slot's process itself, as a role: its random numbers, and where others can meet it."""

    context: Any = None

    def __init__(self, host: str) -> None:
        self._host = host

    def meeting(self) -> str:
        """An address that is free now, for a group of processes to meet at."""
        with socket.create_server((self._host, 0)) as probe:
            return f"tcp://{self._host}:{probe.getsockname()[1]}"

    def seed(self) -> None:
        """Begin with the run's seed, and the slot's number."""
        rng.seed(self.context.seed + self.context.slot)

    def state(self) -> dict[str, Any]:
        """Of Python, numpy and torch."""
        return rng.capture()

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        rng.restore(state)


class Slot:
    """Hosts roles. ``index`` is the slot's number in the plan."""

    def __init__(self, index: int, hub: Address, *, make_stream: MakeStream, host: str = "127.0.0.1") -> None:
        self.index = index
        self._hub = Caller(hub)
        self._make_stream = make_stream
        self._roles: dict[str, Any] = {}
        self._backlogs: dict[str, deque[Call]] = {}
        """Calls of each role that have not ended, the one that runs first."""
        self._submitted = threading.Condition()
        self._turns = Turns(self._switch)
        self._spans = Spans()
        self._arena = Arena()
        self._server = peers.Server(self._arena.borrow, host=host, authkey=hub.key)
        self._arena.address = self._server.address
        self._returned: queue.SimpleQueue[Key] = queue.SimpleQueue()
        self._reader = Reader(self._arena, on_release=self._returned.put, authkey=hub.key)
        self.host({RNG: Process(host)})

    def host(self, roles: Mapping[str, Any]) -> None:
        """Take over copies of roles. Those that came in one call may share parts, such as a policy."""
        for name, role in roles.items():
            self._roles[name] = role
            self._backlogs[name] = deque()
            threading.Thread(target=self._serve, args=(name,), daemon=True, name=f"m2flow-{name}").start()

    def submit(self, call: Call) -> None:
        """Queue a call; its results and its end go to the hub."""
        with self._submitted:
            backlog = self._backlogs[call.role]
            backlog.append(call)
            if len(backlog) == 1:
                self._turns.expect(call.number)
            self._submitted.notify_all()

    def free(self, handles: Sequence[Any]) -> None:
        """Nobody reads these items any more."""
        for handle in handles:
            self._arena.free(handle.key)

    def _serve(self, name: str) -> None:
        """The thread of a role; it ends with the run."""
        with suppress(Disconnected):
            while True:
                self._serve_next(self._backlogs[name])

    def _serve_next(self, backlog: deque[Call]) -> None:
        with self._submitted:
            self._submitted.wait_for(lambda: backlog)
            call = backlog[0]
        _, error = outcome(partial(self._run, call))
        report = error and self._report(call, error)
        # Nothing of the call is alive any more, but what its results keep.
        del error
        returned = [self._returned.get() for _ in range(self._returned.qsize())]
        self._hub("done", call.number, self.index, error=report, spans=self._spans.drain(), returned=returned)

    def _run(self, call: Call) -> None:
        with self._turns.turn(call.number, call.role), self._spans.open(f"{call.role}.{call.method}"):
            try:
                self._answer(call)
            finally:
                self._next(call.role)

    def _next(self, role: str) -> None:
        """While the turn is still held, so that no later call of another role slips in before the role's own next."""
        with self._submitted:
            backlog = self._backlogs[role]
            backlog.popleft()
            if backlog:
                self._turns.expect(backlog[0].number)
            self._submitted.notify_all()

    def _answer(self, call: Call) -> None:
        if call.mode == "share" and len(call.slots) > 1:
            self._answer_in_parts(call)
        else:
            self._put_all(call, self._results(call, partial(self._resolved, call)))

    def _report(self, call: Call, error: BaseException) -> M2flowError:
        """The error as another process can raise it, with the place where it happened."""
        where = f"{call.role}.{call.method} on slot {self.index}"
        is_ours = isinstance(error, M2flowError)
        if is_ours and "__notes__" in vars(error):
            # It came from another slot, through a stream, and says so.
            return error
        report = type(error)(str(error)) if is_ours else FlowError(f"{where} raised {type(error).__name__}: {error}")
        report.add_note(f"in {where}:\n{''.join(traceback.format_exception(error))}")
        return report

    def _answer_in_parts(self, call: Call) -> None:
        """Run the method once for every part of its stream that this slot gets hold of."""
        streams = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, StreamRef)]
        if len(streams) != 1:
            raise FlowError(
                f"{call.role}.{call.method} is given {len(streams)} streams and runs on {len(call.slots)} slots: only "
                "the items of one can be shared among slots; pin the role to one slot, or mark the method `everywhere`"
            )
        while part := self._claim(call, streams[0], consumer=str(call.number)):
            items = [self._reader.read(handle) for _, handle in part]
            self._put_all(call, self._results(call, partial(self._resolved, call, part=items)))

    def _results(self, call: Call, resolved: Callable[[Any], Any]) -> Iterator[Any]:
        role = self._roles[call.role]
        if defines(role, "context"):
            role.context = self._context(call)
        args = [resolved(value) for value in call.args]
        result = getattr(role, call.method)(*args, **{key: resolved(value) for key, value in call.kwargs.items()})
        yield from result if gives_items(getattr(type(role), call.method)) else (result,)

    def _context(self, call: Call) -> Context:
        return Context(
            seed=call.seed,
            iteration=call.iteration,
            num_iterations=call.num_iterations,
            span=self._spans.open,
            slots=call.slots,
            slot=self.index,
        )

    def _put_all(self, call: Call, results: Iterator[Any]) -> None:
        counts = call.mode != "everywhere" or self.index == call.slots[0]
        for result in results:
            if counts:
                self._put(call, result)

    def _put(self, call: Call, item: Any) -> None:
        handles = [(self.index, self._arena.write((self.index, item) if call.mode == "each" else item))]
        if not self._hub("put", call.output, handles, wait=False):
            with self._turns.pause(call.number, call.role):
                self._hub("put", call.output, handles)

    def _resolved(self, call: Call, value: Any, *, part: Sequence[Any] | None = None) -> Any:
        """An argument as the method gets it."""
        if isinstance(value, StreamRef):
            if part is not None:
                return self._make_stream(part, origin=value.origin)

            def refill(num_items: int) -> Any:
                return self._more(call, value, num_items=num_items)

            grows = refill if value.can_grow else None
            return self._make_stream(_Items(partial(self._pull, call, value)), origin=value.origin, refill=grows)
        if isinstance(value, RoleRef):
            return self._role(call, value.name) if self.index in value.here else self._resolved(call, value.snapshot)
        if isinstance(value, ItemRef):
            return next(self._pull(call, value.stream, reading=0))
        return value

    def _role(self, call: Call, name: str) -> Any:
        """A role of this slot, as it is after all of its calls that were issued before ``call``."""

        def is_there() -> bool:
            return all(earlier.number >= call.number for earlier in self._backlogs[name])

        with self._turns.pause(call.number, call.role), self._submitted:
            self._submitted.wait_for(is_there)
        return self._roles[name]

    def _pull(self, call: Call, ref: StreamRef, *, reading: int) -> Iterator[Any]:
        """All items, as they come. Each reading of a stream is a consumer of its own."""
        consumer = f"{call.number}@{self.index}#{reading}"
        while part := self._claim(call, ref, consumer=consumer):
            yield from (self._reader.read(handle) for _, handle in part)

    def _claim(self, call: Call, ref: StreamRef, *, consumer: str) -> list[Any]:
        shares = len(call.slots) if call.mode == "share" else 1
        options = {"num_items": ref.chunk, "shares": shares, "slot": self.index}
        part = self._hub("claim", ref.number, consumer, **options, wait=False)
        if part is not None:
            return part
        with self._turns.pause(call.number, call.role):
            return self._hub("claim", ref.number, consumer, **options)

    def _more(self, call: Call, ref: StreamRef, *, num_items: int) -> Any:
        """Further items from the source of a stream, which the driver draws: the same ones for all slots that ask."""
        with self._turns.pause(call.number, call.role):
            further = self._hub("more", ref, call=call.number, slot=self.index, num_items=num_items)
        return self._resolved(call, further)

    def _switch(self, role: str) -> None:
        """Make room for ``role``: the others put away what they can, and it takes up again what it had put away."""
        for name, other in self._roles.items():
            if name != role and defines(other, "offload"):
                other.offload()
        if defines(self._roles[role], "reload"):
            self._roles[role].reload()


class _Items:
    """The items of a stream that is still being made, for ``for`` and ``len``; each reading begins at the first."""

    def __init__(self, pull: Callable[..., Iterator[Any]]) -> None:
        self._pull = pull
        self._num_readings = 0

    def __iter__(self) -> Iterator[Any]:
        self._num_readings += 1
        return self._pull(reading=self._num_readings)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]
