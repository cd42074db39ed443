# SPDX-License-Identifier: Apache-2.0
import errno
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from m2flow.errors import M2flowError
from m2flow.observe.line_file import LineFile, encode, number, plain, read, replace

WRITER = """
import sys
from pathlib import Path
from m2flow.observe.line_file import LineFile
lines = LineFile(Path(sys.argv[1]))
for iteration in range(10**9):
    lines.append({"iteration": iteration, "text": "x" * 3000})
"""


def test_a_row_is_on_disk_when_append_returns(tmp_path):
    lines = LineFile(tmp_path / "a.jsonl")
    lines.append({"iteration": 0, "reward/mean": 0.5})
    assert (tmp_path / "a.jsonl").read_text() == '{"iteration": 0, "reward/mean": 0.5}\n'


def test_numbers_that_json_lacks_are_strings_and_come_back(tmp_path):
    given = {"iteration": 0, "a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float32("nan")}
    line = encode(given)
    assert json.loads(line, parse_constant=pytest.fail) == {
        "iteration": 0,
        "a": "NaN",
        "b": "Infinity",
        "c": "-Infinity",
        "d": "NaN",
    }
    back = {name: number(value) for name, value in json.loads(line).items()}
    assert str(back["a"]) == "nan" and (back["b"], back["c"]) == (math.inf, -math.inf)


def test_text_is_no_number_and_neither_is_true():
    assert [number(value) for value in ("1.5", "nan", True, None, [1])] == [None] * 5


def test_numpy_values_tuples_and_half_surrogates_are_written():
    assert plain({"a": np.int64(3), "b": (np.float64(0.5), True), 4: None}) == {"a": 3, "b": [0.5, True], "4": None}
    assert json.loads(encode({"iteration": 0, "text": "中\ud800"}))["text"] == "中?"


def test_resuming_drops_later_rows_and_a_torn_last_line(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = LineFile(path)
    for iteration in range(6):
        lines.append({"iteration": iteration})
    with path.open("ab") as file:
        file.write(b'{"iteration": 6, "rew')
    assert [row["iteration"] for row in LineFile(path).keep_before(4)] == [0, 1, 2, 3]
    assert path.read_text() == "".join(f'{{"iteration": {iteration}}}\n' for iteration in range(4))


def test_appending_goes_on_after_a_resume(tmp_path):
    lines = LineFile(tmp_path / "a.jsonl")
    for iteration in range(3):
        lines.append({"iteration": iteration})
    lines.keep_before(1)
    lines.append({"iteration": 1, "again": True})
    assert list(read(tmp_path / "a.jsonl")) == [{"iteration": 0}, {"iteration": 1, "again": True}]


def test_a_tail_of_zeros_from_a_power_cut_is_torn_too(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"iteration": 0}\n\0\0\0\0\n\0\0')
    assert list(read(path)) == [{"iteration": 0}]


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"iteration": 0}\n{"iter\n{"iteration": 2}\n')
    with pytest.raises(M2flowError, match=r"line 2 of .*a.jsonl is damaged"):
        LineFile(path).keep_before(5)


def test_a_resume_that_is_interrupted_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    lines = LineFile(path)
    for iteration in range(3):
        lines.append({"iteration": iteration})
    before = path.read_bytes()

    def power_cut(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", power_cut)
    with pytest.raises(KeyboardInterrupt):
        lines.keep_before(1)
    assert path.read_bytes() == before


def test_a_full_disk_is_said_in_words(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(M2flowError, match=r"cannot write .*metrics.jsonl: the disk is full; free some space"):
        LineFile(path).append({"iteration": 0})


def test_a_row_that_half_fits_is_taken_back(tmp_path, monkeypatch):
    lines = LineFile(tmp_path / "a.jsonl")
    lines.append({"iteration": 0})
    real_write = os.write

    def nearly_full(descriptor, data):
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data[:10])

    with monkeypatch.context() as patch, pytest.raises(M2flowError, match="the disk is full"):
        patch.setattr(os, "write", nearly_full)
        lines.append({"iteration": 1})
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"iteration": 0}\n'


def test_replacing_a_file_on_a_full_disk_leaves_no_rubbish(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(M2flowError, match="the disk is full"):
        replace(tmp_path / "report.html", b"page")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_said_in_words(tmp_path):
    with pytest.raises(M2flowError, match="No such file or directory; make it writable"):
        LineFile(tmp_path / "gone" / "a.jsonl").append({"iteration": 0})


def test_after_kill_minus_nine_the_file_reads_and_resumes(tmp_path):
    path = tmp_path / "a.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    deadline = time.monotonic() + 20
    while (not path.exists() or path.stat().st_size < 300_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    found = [row["iteration"] for row in read(path)]
    assert len(found) >= 99 and found == list(range(len(found)))
    LineFile(path).keep_before(50)
    assert [row["iteration"] for row in read(path)] == list(range(50))
