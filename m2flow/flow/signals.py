# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM: the run ends its iteration and saves; a second signal stops it at once."""

import os
import signal
import threading
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal ended the run. ``number`` is the signal's, ``folder`` the run's."""

    def __init__(self, text: str, *, number: int, folder: Any) -> None:
        super().__init__(text)
        self.number, self.folder = number, folder


class Signals:
    """Between ``listen`` and ``close`` a signal is remembered in ``caught``; the second one raises ``Stopped``.

    Signals that somebody ignores on purpose (``nohup``) stay ignored. Python lets only the main thread listen; in other
    threads all stays as it is.
    """

    def __init__(self, folder: Any, *, quiet: bool) -> None:
        self.caught: int | None = None
        self._folder, self._quiet = folder, quiet
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """From here on."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)

    def close(self) -> None:
        """As it was before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise Stopped("stopped in the middle of an iteration, which is lost", number=number, folder=self._folder)
        self.caught = number
        if not self._quiet:
            # Not print: the signal may have come in the middle of one.
            os.write(2, b"\nstopping after this iteration, to save it; once more stops at once\n")
