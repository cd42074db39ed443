# SPDX-License-Identifier: Apache-2.0
import json
import math
import re
import subprocess
import sys
import time

import pytest

from m2flow.errors import ConfigError, M2flowError
from m2flow.observe.line_file import read
from m2flow.observe.recorder import MAX_CHARACTERS, ObserveConfig, Recorder, spread

QUIET = ObserveConfig(quiet=True)


def recorder(folder, config=QUIET, total=3):
    return Recorder(folder, config=config, total_iterations=total, title="run-0001")


def rows(number, **more):
    return [
        {"prompt": f"{i} + 1 =", "completion": str(i + 1), "reward": 1.0, "rewards": {"math": 1.0}, "tokens": 2, **more}
        for i in range(number)
    ]


def test_a_line_has_the_iteration_its_times_and_its_metrics(tmp_path):
    with_times = recorder(tmp_path)
    with_times.resume_at(0)
    with with_times.span("iteration"), with_times.span("rollout.generate"), with_times.span("decode"):
        time.sleep(0.002)
    with_times.log(0, {"reward/mean": 0.5, "learner/tokens": 100})
    (line,) = read(tmp_path / "metrics.jsonl")
    assert list(line)[:5] == ["iteration", "unix_time_s", "elapsed_s", "reward/mean", "learner/tokens"]
    assert 0 < line["time/rollout.generate/decode_s"] <= line["time/rollout.generate_s"] <= line["time/iteration_s"]
    assert line["throughput/tokens_per_s"] == pytest.approx(100 / line["time/iteration_s"], rel=1e-3)


def test_a_metric_that_is_nan_leaves_the_line_valid_json(tmp_path):
    recorder(tmp_path).log(0, {"policy/approx_kl": math.nan})
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert line["policy/approx_kl"] == "NaN"


@pytest.mark.parametrize("name", ["iteration", "elapsed_s", "unix_time_s", "time/iteration_s"])
def test_a_metric_cannot_take_the_name_of_what_is_measured(tmp_path, name):
    one = recorder(tmp_path)
    with one.span("iteration"):
        pass
    with pytest.raises(M2flowError, match=f"metric '{name}' is one that the recorder writes itself"):
        one.log(0, {name: 1.0})


def test_resuming_drops_what_is_done_again_and_pauses_do_not_count(tmp_path):
    first = recorder(tmp_path)
    first.resume_at(0)
    for iteration in range(3):
        first.log(iteration, {"reward/mean": 0.1})
        first.samples(iteration, rows(1))
    lines = list(read(tmp_path / "metrics.jsonl"))
    lines[1]["elapsed_s"] = 5000.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    second = recorder(tmp_path)
    second.resume_at(2)
    second.log(2, {"reward/mean": 0.9})
    second.samples(2, rows(1))
    found = list(read(tmp_path / "metrics.jsonl"))
    assert [line["iteration"] for line in found] == [0, 1, 2] and found[2]["reward/mean"] == 0.9
    assert 5000.0 <= found[2]["elapsed_s"] < 5060.0
    assert [line["iteration"] for line in read(tmp_path / "samples.jsonl")] == [0, 1, 2]


def test_a_bounded_number_of_samples_is_kept_spread_over_the_groups(tmp_path):
    one = recorder(tmp_path, ObserveConfig(quiet=True, samples_per_iteration=4))
    one.samples(0, rows(64))
    assert [line["prompt"] for line in read(tmp_path / "samples.jsonl")] == [f"{i} + 1 =" for i in (0, 16, 32, 48)]


def test_spreading_takes_no_row_twice():
    many = [{"n": index} for index in range(10)]
    assert [row["n"] for row in spread(many, 3)] == [0, 3, 6]
    assert spread(many, 20) == many and spread(many, 0) == [] and spread([], 4) == []


def test_a_chat_is_kept_as_text_and_endless_text_is_cut(tmp_path):
    chat = ({"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"})
    one = recorder(tmp_path)
    one.samples(0, [{"prompt": chat, "completion": "(" * 50_000, "reward": None}])
    (line,) = read(tmp_path / "samples.jsonl")
    assert line["prompt"] == "system: Add.\nuser: 1 + 1" and line["reward"] is None
    assert line["completion"] == "(" * MAX_CHARACTERS + " … (40,000 more characters)"


def test_tables_are_shown_every_so_many_iterations_and_in_the_last(tmp_path, capsys):
    one = recorder(tmp_path, ObserveConfig(sample_every=2), total=4)
    for iteration in range(4):
        one.log(iteration, {"reward/mean": 0.1})
        one.samples(iteration, rows(2))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("samples of")]
    assert [line.strip() for line in shown] == [f"samples of iteration {number}" for number in (1, 3, 4)]


def test_no_table_and_no_sample_where_none_is_wanted(tmp_path, capsys):
    one = recorder(tmp_path, ObserveConfig(sample_every=0, samples_per_iteration=2))
    one.samples(0, rows(2))
    assert capsys.readouterr().out == ""
    none = recorder(tmp_path / "..", ObserveConfig(samples_per_iteration=0))
    none.samples(0, rows(2))
    assert not (tmp_path / ".." / "samples.jsonl").exists() and capsys.readouterr().out == ""


def test_quiet_prints_nothing_and_writes_everything(tmp_path, capsys):
    one = recorder(tmp_path)
    one.resume_at(0)
    one.log(0, {"reward/mean": 0.1})
    one.samples(0, rows(2))
    one.close()
    assert capsys.readouterr() == ("", "")
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "samples.jsonl", "trace.json", "report.html"}


def test_closing_says_how_it_went_and_closing_again_does_nothing(tmp_path, capsys):
    one = recorder(tmp_path, ObserveConfig())
    one.resume_at(0)
    for iteration, reward in enumerate((0.25, 0.5, 0.75)):
        one.log(iteration, {"reward/mean": reward})
    one.close()
    one.close()
    out = capsys.readouterr().out
    assert len(re.findall(r"finished after 3 of 3 iterations in [\d.]+ s  reward 0.250 -> 0.750\n", out)) == 1
    assert f"report: {(tmp_path / 'report.html').resolve().as_uri()}" in out


def test_a_full_disk_stops_the_run_with_clear_words(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(M2flowError, match="the disk is full; free some space, then go on with --resume auto"):
        recorder(tmp_path).log(0, {"reward/mean": 0.1})


def test_spans_after_the_last_line_are_in_the_trace(tmp_path):
    one = recorder(tmp_path, total=1)
    one.resume_at(0)
    one.log(0, {})
    with one.span("checkpoint"):
        pass
    one.close()
    (event,) = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert event["args"] == {"iteration": 1, "path": "between/checkpoint"}


def test_a_logger_that_does_not_exist_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'wandb'"):
        ObserveConfig(loggers=("wandbb",))


def test_loggers_are_chosen_by_name_or_with_options(tmp_path):
    config = ObserveConfig(loggers=("tensorboard", {"name": "wandb", "project": "mine"}))
    assert [type(choice).owner.name for choice in config.loggers] == ["tensorboard", "wandb"]
    assert config.loggers[1].project == "mine" and config.loggers[1].mode == "offline"
    assert ObserveConfig.from_dict(config.to_dict()) == config


def test_recording_loads_no_heavy_package():
    code = (
        "import sys, m2flow.observe.recorder as r; r.ObserveConfig(loggers=('wandb', 'trackio', 'tensorboard'));"
        "heavy = ('torch', 'wandb', 'trackio', 'tensorboard', 'jinja2', 'numpy');"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
