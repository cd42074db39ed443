# SPDX-License-Identifier: Apache-2.0
import importlib.util
import subprocess
import sys
from typing import ClassVar

import pytest

from m2flow import registry
from m2flow.errors import ConfigError
from m2flow.observe.loggers import base
from m2flow.observe.recorder import ObserveConfig, Recorder

EVERY = registry.names("loggers")


def test_the_directory_holds_the_promised_loggers():
    assert {"tensorboard", "wandb", "trackio"} <= set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_a_missing_package_is_said_before_anything_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"pip install 'm2flow\[{name}\]'"):
        Recorder(tmp_path, config=ObserveConfig(loggers=(name,)), total_iterations=1, title="run")
    assert list(tmp_path.iterdir()) == []


def test_all_missing_packages_are_said_at_once(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError) as error:
        ObserveConfig(loggers=("wandb", "trackio")).check()
    assert "m2flow[wandb]" in str(error.value) and "m2flow[trackio]" in str(error.value)


@pytest.mark.parametrize("name", EVERY)
def test_choosing_a_logger_imports_its_file_and_not_its_package(name):
    code = f"import sys; from m2flow import registry; registry.load('loggers', {name!r}).Config()"
    code += f"; print({name!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


class Listed(base.Logger):
    """A logger of somebody else."""

    calls: ClassVar[list] = []

    class Config(registry.AnyConfig):
        """Nothing to set."""

    def resume_at(self, iteration):
        self.calls.append(("resume_at", iteration))

    def log(self, iteration, metrics):
        self.calls.append(("log", iteration, metrics["reward/mean"]))

    def samples(self, iteration, rows):
        self.calls.append(("samples", iteration, len(rows)))

    def close(self):
        self.calls.append(("close",))


def test_a_logger_hears_everything_in_order(tmp_path, capsys):
    Listed.calls = []
    config = ObserveConfig(loggers=(Listed.Config(),), sample_every=2, samples_per_iteration=3)
    recorder = Recorder(tmp_path, config=config, total_iterations=4, title="run")
    recorder.resume_at(1)
    for iteration in (1, 2):
        recorder.log(iteration, {"reward/mean": iteration / 4})
        recorder.samples(iteration, [{"prompt": "a", "completion": "b", "reward": 1.0}] * 5)
    recorder.close()
    assert Listed.calls == [("resume_at", 1), ("log", 1, 0.25), ("log", 2, 0.5), ("samples", 2, 3), ("close",)]
