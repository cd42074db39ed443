# SPDX-License-Identifier: Apache-2.0
"""The receiving side: takes each version by the shortest route, and says what it has."""

import torch

from m2flow.transport.segment import node_id
from m2flow.weights.base import Receipt, Route, State, WeightsHandle
from m2flow.weights.checksum import checksum
from m2flow.weights.inprocess import InProcess
from m2flow.weights.network import Network
from m2flow.weights.publisher import Publisher
from m2flow.weights.sharing import Sharing


class Receiver:
    """Receives one policy's weights in this process.

    Args:
        name: as the publisher knows it.
        publisher: of this process, if it has one.
        node: names the machine whose shared memory can be mapped here.
        authkey: the run's secret, for weights from other nodes.
        timeout_s: how long another node may be silent.
    """

    def __init__(
        self,
        name: str,
        *,
        publisher: Publisher | None = None,
        node: str | None = None,
        authkey: bytes = b"",
        timeout_s: float = 60.0,
    ) -> None:
        self.name, self._node, self._own = name, node or node_id(), publisher and publisher.id
        self._in_process = publisher and InProcess(publisher)
        self._sharing, self._network = Sharing(), Network(authkey=authkey, timeout_s=timeout_s)

    def _route(self, handle: WeightsHandle) -> Route:
        if self._in_process is not None and handle.key[0] == self._own:
            return self._in_process
        return self._sharing if handle.node == self._node and handle.place is not None else self._network

    def receive(self, handle: WeightsHandle) -> dict[str, torch.Tensor]:
        """The tensors of a version, not to be written to.

        They are the publisher's own in its process, views of its memory on its node (a write there ends this process),
        and a copy from another node.

        They stay as they are until the second ``receive`` from now, given that a receipt was sent for this one.

        Raises:
            WeightsError: the version is no longer there.
            TransportError: its publisher is gone.
        """
        return self._route(handle).receive(handle)

    def receipt(self, handle: WeightsHandle, loaded: State) -> Receipt:
        """Echo what there is now: ``loaded`` are the tensors that will be *used*, under the names they came by.

        Give what was received where it is used in place, and the model's own tensors where they were copied into it.

        Raises:
            WeightsError: the version was overwritten meanwhile.
        """
        is_near = self._route(handle) is self._sharing
        found = None if handle.checksum is None else checksum(loaded, handle.every)
        if is_near:
            self._sharing.require(handle)
        is_in_place = is_near and any(self._sharing.holds(tensor) for tensor in loaded.values())
        return Receipt(self.name, handle.version, found, is_in_place)

    def close(self) -> None:
        """Let go of mapped memory and connections; tensors that are still used keep theirs."""
        self._sharing.close()
        self._network.close()
