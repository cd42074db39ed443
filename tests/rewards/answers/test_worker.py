# SPDX-License-Identifier: Apache-2.0
import os
import struct
import subprocess
import sys

import pytest

START = "import os, sys, time, m2flow.rewards.answers.worker as worker\n"
KEEP = "worker.keep(int(sys.argv[1]), timeout_s=0.5, memory_bytes=2**29)\n"
BEHAVE = f"""{START}
def judge(gold, answer):
    exec(answer)
    return True
worker.judge = judge
{KEEP}"""
"""A worker that does what it is told, which the real one never does."""


def framed(text: str) -> bytes:
    """As it goes over the pipe."""
    data = text.encode()
    return struct.pack(">I", len(data)) + data


def replies(code: str, pairs: list[tuple[str, str]]) -> bytes:
    """What a worker that runs ``code`` answers to all of ``pairs``, the pipe then being closed."""
    command = [sys.executable, "-c", code, str(os.getpid())]
    asked = b"".join(framed(text) for pair in pairs for text in pair)
    return subprocess.run(command, input=asked, stdout=subprocess.PIPE, timeout=60, check=True).stdout


def test_it_judges_in_order_until_the_pipe_closes():
    pairs = [("1/2", "0.5"), ("1/2", "0.6"), ("Größe", "größe"), ("1", "1" * 5000), ("", "")]
    assert replies(START + KEEP, pairs) == b"R10100"


@pytest.mark.parametrize(
    ("behaviour", "reply"),
    [("time.sleep(60)", b"T"), ("9**9**9", b"T"), ("bytearray(2**31)", b"M")],
)
def test_after_a_judge_that_met_a_limit_the_next_one_answers(behaviour, reply):
    assert replies(BEHAVE, [("", behaviour), ("", "pass"), ("", behaviour), ("", "pass")]) == b"R" + (reply + b"1") * 2


@pytest.mark.parametrize(
    "behaviour", ["os.abort()", "os.kill(os.getpid(), 9)", "sys.exit(5)", "raise ValueError", "os._exit(1)"]
)
def test_after_a_crash_it_says_so_and_ends(behaviour):
    assert replies(BEHAVE, [("", "pass"), ("", behaviour), ("", "pass")]) == b"R1C"


def test_it_ends_when_its_parent_is_gone_though_the_pipe_stays_open():
    parent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = START + "worker._POLL_S = 0.05\n" + KEEP
    command = [sys.executable, "-c", code, str(parent.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdout.read(1) == b"R"
        assert worker.poll() is None
        parent.kill()
        parent.wait()
        assert worker.wait(timeout=10) == 0


def test_it_imports_neither_torch_nor_the_rest_of_the_package():
    code = "import m2flow.rewards.answers.worker, sys; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False False\n"


def test_a_judge_that_has_answered_is_not_killed_by_an_old_alarm():
    code = BEHAVE.replace("exec(answer)", "time.sleep(0.2)")
    assert replies(code, [("", "")] * 5) == b"R11111"
