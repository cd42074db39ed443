# SPDX-License-Identifier: Apache-2.0
import io
import math
import sys

import pytest

from m2flow.observe import progress as progress_module
from m2flow.observe.progress import Course, PlainProgress, SilentProgress, open_progress, plain_line, shares
from m2flow.observe.sample_table import sample_table

METRICS = {
    "reward/mean": 0.734,
    "policy/approx_kl": 0.0123,
    "throughput/tokens_per_s": 2410.0,
    "time/iteration_s": 1.93,
}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_an_iteration_is_one_line():
    file = io.StringIO()
    plain = PlainProgress("grpo-0001", 100, stream=file)
    plain.start([])
    plain.show(11, METRICS, parts={"generate": 1.2, "update": 0.7, "other": 0.03})
    assert file.getvalue().splitlines() == [
        "grpo-0001: 100 iterations",
        " 12/100  reward    0.734  KL   0.0123    2,410 tokens/s   1.9 s  left    2:50  generate 62%  update 36%",
    ]


def test_columns_of_different_iterations_stand_below_one_another():
    course = Course(100)
    lines = []
    for iteration, scale in ((0, 1.0), (9, 0.001), (99, -1.0)):
        metrics = {**METRICS, "reward/mean": 0.734 * scale, "throughput/tokens_per_s": 2410 * abs(scale)}
        course.add(iteration, metrics)
        lines.append(plain_line(course, metrics, parts={}))
    assert len({(line.index("KL"), line.index("tokens/s"), line.index("left")) for line in lines}) == 1


def test_a_metric_that_is_missing_or_not_a_number_is_shown_as_such():
    course = Course(10)
    course.add(0, METRICS)
    metrics = {"reward/mean": math.nan, "time/iteration_s": 2.0}
    course.add(1, metrics)
    line = plain_line(course, metrics, parts={})
    assert "reward      NaN" in line and "KL        –" in line


def test_without_a_terminal_there_are_no_control_codes_even_where_colours_are_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    plain = PlainProgress("run", 3, stream=file)
    plain.start([])
    plain.show(0, METRICS, parts={"a": 1.0})
    plain.print(sample_table(0, [{"prompt": "1 +\x1b[2J", "completion": "[red]2", "reward": 1.0}]))
    plain.finish(progress_module.Path("/runs/a/report.html"), 151.0)
    assert not any(ord(character) < 32 and character != "\n" for character in file.getvalue())


def test_long_lines_are_not_wrapped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    file = io.StringIO()
    PlainProgress("run", 3, stream=file).print("x" * 500)
    assert file.getvalue() == "x" * 500 + "\n"


def test_a_stream_that_knows_only_ascii_gets_question_marks():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    plain = PlainProgress("run", 3, stream=file)
    plain.print("reward –")
    plain.print(sample_table(0, [{"prompt": "中", "completion": "é", "reward": None}]))
    assert raw.getvalue().startswith(b"reward ?\n") and b"\x1b" not in raw.getvalue()


def test_the_time_left_follows_the_last_iterations():
    course = Course(100)
    for iteration in range(50):
        course.add(iteration, {"time/iteration_s": 100.0 if iteration < 30 else 2.0})
    assert course.left_s == pytest.approx(100.0)


def test_a_resumed_run_goes_on_from_its_lines():
    file = io.StringIO()
    plain = PlainProgress("run", 10, stream=file)
    plain.start(
        [{"iteration": i, "reward/mean": value, "time/iteration_s": 1.0} for i, value in enumerate((0.3, "NaN"))]
    )
    assert file.getvalue() == "run: 10 iterations, 2 done before\n"
    plain.show(2, METRICS, parts={})
    assert plain.course.first["reward"] == 0.3 and plain.course.last["reward"] == 0.734


def test_the_end_says_how_reward_went_and_where_the_report_is():
    file = io.StringIO()
    plain = PlainProgress("run", 2, stream=file)
    plain.show(0, {"reward/mean": 0.31, "held_out/mean": 0.3}, parts={})
    plain.show(1, {"reward/mean": 0.93, "held_out/mean": 0.94}, parts={})
    plain.finish(progress_module.Path("/runs/a b/report.html"), 151.0)
    assert file.getvalue().splitlines()[-2:] == [
        "finished after 2 of 2 iterations in 2:31  reward 0.310 -> 0.930  held-out 0.300 -> 0.940",
        "report: file:///runs/a%20b/report.html",
    ]


def test_a_run_that_ended_early_says_stopped():
    file = io.StringIO()
    plain = PlainProgress("run", 5, stream=file)
    plain.show(0, METRICS, parts={})
    plain.finish(progress_module.Path("/r.html"), 1.0)
    assert "stopped after 1 of 5 iterations" in file.getvalue()


def test_shares_are_ordered_and_without_crumbs():
    assert shares({"a": 1.0, "b": 3.0, "c": 0.001}) == ["b 75%", "a 25%"]
    assert shares({}) == [] and shares({"a": 0.0}) == []


def test_the_display_fits_where_standard_output_goes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert type(open_progress("run", 1, quiet=False)) is PlainProgress
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert type(open_progress("run", 1, quiet=False)).__name__ == "LiveProgress"
    assert type(open_progress("run", 1, quiet=True)) is SilentProgress
    monkeypatch.setenv("TERM", "dumb")
    assert type(open_progress("run", 1, quiet=False)) is PlainProgress
