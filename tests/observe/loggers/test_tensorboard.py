# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from m2flow.observe.loggers.base import RunInfo
from m2flow.observe.loggers.tensorboard import Tensorboard

pytest.importorskip("tensorboard")


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)], events


def log(folder, values, first=0):
    logger = Tensorboard(Tensorboard.Config(), RunInfo(folder=folder, title="run"))
    logger.resume_at(first)
    for iteration, value in enumerate(values, start=first):
        logger.log(iteration, {"reward/mean": value})
    return logger


def test_event_files_hold_every_iteration_and_what_a_resume_did_again_once(tmp_path):
    log(tmp_path, [0.0, 0.25, 0.5, 0.75]).close()
    again = log(tmp_path, [8.0, math.nan], first=2)
    again.samples(2, [{"prompt": "1 + 1 =", "completion": "# 2", "reward": 1.0}])
    again.close()
    found, events = scalars(tmp_path / "tensorboard", "reward/mean")
    assert found[:3] == [(0, 0.0), (1, 0.25), (2, 8.0)]
    assert found[3][0] == 3 and math.isnan(found[3][1]) and len(found) == 4
    (text,) = [event.tensor_proto.string_val[0] for event in events.Tensors("samples/0/text_summary")]
    assert text == b"    reward 1.0\n    \n    1 + 1 =\n    \n    # 2"


def test_another_folder_can_be_given(tmp_path):
    config = Tensorboard.Config(folder=tmp_path / "elsewhere")
    logger = Tensorboard(config, RunInfo(folder=tmp_path / "run", title="run"))
    logger.log(0, {"a": 1.0})
    logger.close()
    assert scalars(tmp_path / "elsewhere", "a")[0] == [(0, 1.0)]
