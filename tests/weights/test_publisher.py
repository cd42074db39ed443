# SPDX-License-Identifier: Apache-2.0
"""A version arrives whole by every route, is never overwritten while somebody reads it, and is checked on arrival."""

import secrets
import signal
from collections.abc import Callable

import pytest
import torch
from spawned import child

from m2flow.errors import TransportError, WeightsError
from m2flow.transport.peers import Server
from m2flow.transport.segment import mapped
from m2flow.weights.base import Receipt, WeightsHandle
from m2flow.weights.publisher import Publisher
from m2flow.weights.receiver import Receiver

KEY = secrets.token_bytes(32)


def make_state(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return {
        "model.weight": draw(300, 400),
        "model.half": draw(70, 3).to(torch.bfloat16),
        "model.transposed": draw(5, 7).t(),
        "scale": draw(()),
        "steps": torch.tensor(seed),
        "empty": draw(0, 4),
        "mask": draw(9) > 0,
    }


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name])


def arrives(publisher: Publisher, receiver: Receiver, *, version: int) -> dict[str, torch.Tensor]:
    handle = publisher.publish(make_state(version), version, receivers=[receiver.name])
    found = receiver.receive(handle)
    publisher.confirm(receiver.receipt(handle, found))
    assert not publisher.missing(version)
    return found


ROUTES: dict[str, Callable[[Publisher], Receiver]] = {
    "reference": lambda publisher: Receiver("r", publisher=publisher),
    "sharing": lambda _: Receiver("r"),
    "network": lambda _: Receiver("r", node="another", authkey=KEY),
}


@pytest.mark.parametrize("route", ROUTES)
def test_each_version_arrives_bit_for_bit_and_the_one_before_stays(route: str):
    publisher = Publisher(every=1)
    server = Server(publisher.borrow, authkey=KEY)
    publisher.address = server.address
    receiver, before = ROUTES[route](publisher), None
    for version in range(5):
        found = arrives(publisher, receiver, version=version)
        assert_same(make_state(version), found)
        if before is not None:
            assert_same(make_state(version - 1), before)
        before = found
    receiver.close()
    publisher.close()
    server.close()


def test_in_the_learners_process_the_very_tensors_arrive_and_nothing_is_copied():
    publisher, state = Publisher(is_shared=False), make_state(0)
    receiver = Receiver("r", publisher=publisher)
    handle = publisher.publish(state, 0, receivers=["r"])
    found = receiver.receive(handle)
    assert handle.place is None and all(found[name] is state[name] for name in state)
    publisher.confirm(receiver.receipt(handle, found))
    publisher.publish(state, 1, receivers=["r"])
    with pytest.raises(WeightsError, match="the newest is 1"):
        receiver.receive(handle)


def test_on_one_node_tensors_lie_in_the_two_buffers_of_the_learner():
    publisher, receiver = Publisher(), Receiver("r")
    places = [arrives(publisher, receiver, version=version)["model.weight"].data_ptr() for version in range(4)]
    assert places[0] == places[2] != places[1] == places[3]


def test_a_buffer_that_is_used_in_place_is_not_overwritten_until_a_later_receipt():
    publisher, slow, fast = Publisher(), Receiver("slow"), Receiver("fast")
    handles = [publisher.publish(make_state(v), v, receivers=["slow", "fast"]) for v in range(2)]
    held = slow.receive(handles[0])
    publisher.confirm(slow.receipt(handles[0], held))
    publisher.confirm(fast.receipt(handles[1], fast.receive(handles[1])))
    with pytest.raises(WeightsError, match=r"version 0 is still being read by \['slow'\]"):
        publisher.publish(make_state(2), 2, receivers=["slow", "fast"])
    assert_same(make_state(0), held)
    publisher.confirm(slow.receipt(handles[1], slow.receive(handles[1])))
    publisher.publish(make_state(2), 2, receivers=["slow", "fast"])
    with pytest.raises(WeightsError, match="the buffer of version 0 holds version 2"):
        slow.receive(handles[0])


def test_a_receiver_that_copied_needs_the_buffer_no_longer():
    publisher, receiver = Publisher(), Receiver("r")
    for version in range(2):
        handle = publisher.publish(make_state(version), version, receivers=["r"])
        copies = {name: tensor.clone() for name, tensor in receiver.receive(handle).items()}
        receipt = receiver.receipt(handle, copies)
        assert not receipt.is_in_place
        publisher.confirm(receipt)
        assert not publisher._versions[-1].readers


def test_a_dead_receiver_is_not_waited_for_and_a_new_one_gets_the_newest():
    publisher, new = Publisher(), Receiver("new")
    for version in range(2):
        publisher.publish(make_state(version), version, receivers=["dead"])
    publisher.drop("dead")
    publisher.publish(make_state(2), 2, receivers=[])
    handle = publisher.admit("new")
    assert publisher.missing(2) == ["new"]
    publisher.confirm(new.receipt(handle, new.receive(handle)))


def swapped(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return state | {"model.weight": state["model.weight"].flip(0)}


WRONG: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "stale": lambda state: make_state(0),
    "one missing": lambda state: {name: state[name] for name in list(state)[1:]},
    "one renamed": lambda state: {name.replace("scale", "scales"): state[name] for name in state},
    "another dtype": lambda state: state | {"model.weight": state["model.weight"].to(torch.bfloat16)},
    "rows in another order": swapped,
    "one stale": lambda state: state | {"scale": make_state(0)["scale"]},
}


@pytest.mark.parametrize("case", WRONG)
def test_weights_that_did_not_arrive_are_an_error(case: str):
    publisher, receiver = Publisher(), Receiver("r")
    handle = publisher.publish(make_state(1), 1, receivers=["r"])
    loaded = WRONG[case](receiver.receive(handle))
    with pytest.raises(WeightsError, match="the weights of version 1 did not arrive at 'r'"):
        publisher.confirm(receiver.receipt(handle, loaded))
    assert publisher.missing(1) == ["r"]


def test_a_receipt_that_nobody_waits_for_is_an_error():
    publisher = Publisher()
    handle = publisher.publish(make_state(1), 1, receivers=["r"])
    for receipt in (Receipt("r", 7, handle.checksum, False), Receipt("other", 1, handle.checksum, False)):
        with pytest.raises(WeightsError, match="receipts are expected for"):
            publisher.confirm(receipt)


def test_versions_grow_and_buffers_with_them():
    publisher, receiver = Publisher(), Receiver("r")
    arrives(publisher, receiver, version=3)
    with pytest.raises(WeightsError, match="version 3 follows version 3"):
        publisher.publish(make_state(3), 3, receivers=["r"])
    for version in range(4, 8):
        state = {"w": torch.full((1000 * version,), float(version))}
        handle = publisher.publish(state, version, receivers=["r"])
        found = receiver.receive(handle)
        publisher.confirm(receiver.receipt(handle, found))
        assert_same(state, found)


def test_a_version_half_written_is_not_there():
    publisher, receiver = Publisher(), Receiver("r")
    handle = publisher.publish(make_state(0), 0, receivers=["r"])
    segment = publisher._versions[0].segment
    assert segment is not None
    segment.bytes[:8] = 0
    with pytest.raises(WeightsError, match="holds none that is complete"):
        receiver.receive(handle)


def learn(connection) -> None:
    publisher = Publisher()
    publisher.address = Server(publisher.borrow, authkey=KEY).address
    connection.send(publisher.publish(make_state(0), 0, receivers=["r"]))
    publisher.confirm(connection.recv())
    connection.send("confirmed")
    connection.recv()


def roll_out(connection, handle: WeightsHandle) -> None:
    found = Receiver("r").receive(handle)
    connection.send(bool(torch.equal(found["model.weight"], make_state(0)["model.weight"])))
    found["model.weight"].zero_()
    connection.send("written")


def test_weights_outlive_their_learner_where_they_are_used_and_are_gone_elsewhere():
    with child(learn) as (connection, process):
        handle, receiver = connection.recv(), Receiver("r")
        found = receiver.receive(handle)
        connection.send(receiver.receipt(handle, found))
        assert connection.recv() == "confirmed"
        process.kill()
        process.join()
        assert_same(make_state(0), found)
        with pytest.raises(TransportError, match="that process has ended"):
            Receiver("r").receive(handle)
        with pytest.raises(TransportError, match="has ended, cannot be reached or"):
            Receiver("r", node="another", authkey=KEY).receive(handle)


def test_a_write_into_shared_weights_ends_the_writer_and_changes_nothing():
    publisher = Publisher()
    handle = publisher.publish(make_state(0), 0, receivers=["r"])
    assert handle.place is not None
    before = mapped(handle.place).copy()
    with child(roll_out, handle) as (connection, process):
        assert connection.recv()
        process.join(30)
        assert process.exitcode == -signal.SIGSEGV
    assert (mapped(handle.place) == before).all()
