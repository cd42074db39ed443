# SPDX-License-Identifier: Apache-2.0
"""Questions and answers between processes."""

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError

import pytest

from m2flow.errors import DataError
from m2flow.runtime.wire import Caller, Disconnected, Server


def refuse() -> None:
    raise DataError("no such file")


@pytest.mark.parametrize("is_near", [True, False])
def test_methods_answer_over_a_socket_and_over_tcp(is_near: bool):
    server = Server({"add": lambda a, b: a + b, "refuse": refuse})
    address = server.address if is_near else server.address._replace(node="another machine")
    call = Caller(address)
    assert call("add", 2, b=3) == 5
    with pytest.raises(DataError, match="no such file"):
        call("refuse")
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda i: call("add", i, b=1), range(50))) == list(range(1, 51))
    server.close()


def test_a_stranger_is_not_answered_and_does_not_end_the_server():
    server = Server({"add": lambda a, b: a + b})
    with pytest.raises(AuthenticationError):
        Caller(server.address._replace(key=b"guessed"))("add", 1, 2)
    assert Caller(server.address)("add", 1, 2) == 3
    server.close()


def test_a_server_that_has_gone_is_an_error_that_says_so():
    server = Server({})
    server.close()
    with pytest.raises(Disconnected, match="has ended"):
        Caller(server.address)("add")
