# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("trackio")

# Trackio reads its folder's name when it is imported, so it gets a process of its own.
SCRIPT = """
import json, sys
from pathlib import Path
from m2flow.observe.loggers.base import RunInfo
from m2flow.observe.loggers.trackio import Trackio

def logger(folder):
    folder.mkdir(exist_ok=True)
    return Trackio(Trackio.Config(project="mine"), RunInfo(folder=folder, title="grpo-0001", settings={"seed": 3}))

root = Path(sys.argv[1])
for iteration in range(2):
    one = logger(root / "a")
    one.log(iteration, {"reward/mean": 0.25 + iteration, "policy/approx_kl": float("nan")})
    one.samples(iteration, [{"prompt": "1 + 1 =", "completion": "2", "reward": None}])
    one.close()
other = logger(root / "b")
other.log(0, {"reward/mean": 7.0})
other.close()

from trackio.sqlite_storage import SQLiteStorage
runs = SQLiteStorage.get_runs("mine")
rows = {run: SQLiteStorage.get_logs("mine", run) for run in runs}
print(json.dumps({run: [(row.get("step"), row.get("reward/mean")) for row in rows[run]] for run in runs}))
"""


def test_a_resumed_run_goes_on_and_another_of_the_same_name_is_its_own(tmp_path):
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True, env=environment
    )
    runs = json.loads(done.stdout)
    assert len(done.stdout.splitlines()) == 1
    first, second = ((tmp_path / folder / "trackio-name.txt").read_text() for folder in "ab")
    assert first.startswith("grpo-0001-") and first != second and set(runs) == {first, second}
    assert [row for row in runs[first] if row[1] is not None] == [[0, 0.25], [1, 1.25]]
    assert runs[second] == [[0, 7.0]]
