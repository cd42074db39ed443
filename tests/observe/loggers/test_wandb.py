# SPDX-License-Identifier: Apache-2.0
import json
import math
import sys

import pytest

from m2flow.errors import ConfigError
from m2flow.observe.loggers.base import RunInfo
from m2flow.observe.loggers.wandb import ID_FILE, Wandb

wandb = pytest.importorskip("wandb")


def logger(folder):
    return Wandb(Wandb.Config(project="mine"), RunInfo(folder=folder, title="grpo-0001", settings={"seed": 3}))


def test_an_offline_run_is_in_the_runs_folder_and_keeps_its_id_over_a_resume(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    first = logger(tmp_path)
    first.log(0, {"reward/mean": 0.5, "policy/approx_kl": math.nan})
    first.samples(0, [{"prompt": "1 + 1 =", "completion": "2", "reward": 1.0, "rewards": {"math": 1.0}}])
    first.close()
    files = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    run_id = (tmp_path / ID_FILE).read_text()
    assert [file.name for file in files] == [f"run-{run_id}.wandb"]
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/*.json")
    assert json.loads(table.read_text()) == {
        "columns": ["iteration", "prompt", "completion", "reward", "rewards"],
        "data": [[0, "1 + 1 =", "2", 1.0, "{'math': 1.0}"]],
    }
    content = files[0].read_bytes()
    assert b"reward/mean" in content and b"grpo-0001" in content and b"mine" in content
    second = logger(tmp_path)
    assert second._run.id == run_id
    second.close()


def test_without_the_package_the_run_does_not_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"logger 'wandb' needs the package 'wandb'.*pip install 'm2flow\[wandb\]'"):
        Wandb.Config().check()


def test_online_without_an_account_is_an_error_that_offers_offline(tmp_path, monkeypatch):
    def refuse(**settings):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match=r"W&B did not start: No API key configured.; log in .* or take mode offline"):
        Wandb(Wandb.Config(mode="online"), RunInfo(folder=tmp_path, title="run"))
