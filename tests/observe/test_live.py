# SPDX-License-Identifier: Apache-2.0
import io
import logging
import os
import pdb
import re
import sys

import pytest
from rich.console import Console

from m2flow.observe.live import HEIGHT, LiveProgress

WIDTH = 100


class Screen(io.StringIO):
    """A terminal that does what the display asks of one: new lines, returns, up, erase a line."""

    encoding = "utf-8"

    def isatty(self):
        return True

    @property
    def lines(self):
        rows, at, column = [""], 0, 0
        for up, other, character in re.findall(r"\x1b\[(\d+)A|\x1b\[([\d;?]*[A-Za-z])|(.)", self.getvalue(), re.DOTALL):
            at -= int(up or 0)
            if other == "2K":
                rows[at] = ""
            if character in ("\n", "\r"):
                at, column = at + (character == "\n"), 0
                rows += [""] * (at + 1 - len(rows))
            elif character:
                rows[at] = rows[at][:column].ljust(column) + character + rows[at][column + 1 :]
                column += 1
        return [row.rstrip() for row in rows]


@pytest.fixture
def screen():
    return Screen()


@pytest.fixture
def started(screen, monkeypatch):
    """Starts a display on ``screen``, which is standard output and error from then on."""
    displays = []

    def start(title="grpo-0001", width=WIDTH):
        # In the test's own phase: pytest puts its own streams back between a fixture and the test.
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        console = Console(file=screen, force_terminal=True, width=width, height=30, color_system="standard")
        displays.append(LiveProgress(title, 10, console=console))
        displays[-1].start([])
        return displays[-1]

    yield start
    for display in displays:
        display.close()


def run_iteration(live, iteration, reward):
    live.stage("between/iteration/rollout.generate")
    live.show(
        iteration,
        {"reward/mean": reward, "policy/approx_kl": 0.01, "time/iteration_s": 2.0},
        parts={"generate": 1.5, "update": 0.5},
    )


def test_the_display_shows_the_course_of_the_run(started, screen):
    live = started()
    for iteration, reward in enumerate((0.0, 0.5, 1.0)):
        run_iteration(live, iteration, reward)
    bar, values, parts = screen.lines[-HEIGHT:]
    assert "grpo-0001" in bar and "3/10" in bar and "14.0 s left" in bar
    assert values == "reward 1 ▁▅█  KL 0.0100"
    assert parts == "███████████████ generate 75%  █████ update 25%"


def test_prints_go_above_and_the_display_goes_when_the_run_ends(started, screen):
    live = started()
    run_iteration(live, 0, 0.1)
    print("hello", end=" ")
    print("world\nsecond line")
    sys.stderr.write("a warning\n")
    run_iteration(live, 1, 0.2)
    assert screen.lines[:3] == ["hello world", "second line", "a warning"]
    assert "2/10" in screen.lines[3] and len(screen.lines) == 3 + HEIGHT
    print("no newline at the end", end="")
    live.close()
    assert [line for line in screen.lines if line] == [
        "hello world",
        "second line",
        "a warning",
        "no newline at the end",
    ]


def test_markup_and_colours_of_prints_are_left_as_they_are(started, screen):
    live = started()
    print("[bold]not markup[/bold] \x1b[31mred\x1b[0m")
    live.close()
    assert screen.lines[0] == "[bold]not markup[/bold] red"
    assert "\x1b[31mred" in screen.getvalue()


def test_of_a_bar_drawn_with_carriage_returns_the_last_state_stays(started, screen):
    live = started()
    sys.stdout.write("10%\r50%\r100%\n")
    live.close()
    assert screen.lines[0] == "100%"


def test_log_handlers_write_above_too_and_get_their_stream_back(started, screen):
    handler = logging.StreamHandler(screen)
    logger = logging.getLogger("m2flow.test_live")
    logger.addHandler(handler)
    try:
        live = started()
        logger.error("logged")
        run_iteration(live, 0, 0.1)
        assert screen.lines[0] == "logged" and "1/10" in screen.lines[1]
        live.close()
        assert handler.stream is screen
    finally:
        logger.removeHandler(handler)


def test_streams_and_breakpoint_are_given_back(started, screen):
    hook = sys.breakpointhook
    live = started()
    assert sys.stdout is not screen and sys.breakpointhook != hook
    live.close()
    assert (sys.stdout, sys.stderr, sys.breakpointhook) == (screen, screen, hook)


def test_a_breakpoint_stops_in_the_users_frame_with_the_display_away(started, screen, monkeypatch):
    frames = []

    class Debugger:
        def set_trace(self, frame):
            frames.append((frame.f_code.co_name, sys.stdout is screen))

    monkeypatch.setattr(pdb, "Pdb", Debugger)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    live = started()

    def reward_function():
        breakpoint()

    reward_function()
    assert frames == [("reward_function", True)]
    assert not any(screen.lines)
    run_iteration(live, 0, 0.1)
    assert len([line for line in screen.lines if "1/10" in line]) == 1


def test_a_debugger_of_the_users_choice_is_called(started, screen, monkeypatch):
    called = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: called.append(sys.stdout is screen))
    started()
    breakpoint()
    assert called == [True]


def test_a_print_of_a_forked_process_stays_above_the_display(started, screen, monkeypatch):
    live = started()
    run_iteration(live, 0, 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        print("from a child\nand again")
    run_iteration(live, 1, 0.2)
    assert screen.lines[:2] == ["from a child", "and again"] and "2/10" in screen.lines[2]


def test_a_narrow_terminal_cuts_lines_and_keeps_their_number(started, screen):
    live = started("a-very-long-name-of-a-run-0001", width=30)
    for iteration in range(3):
        run_iteration(live, iteration, 0.123456)
    assert len(screen.lines) == HEIGHT and all(len(line) <= 30 for line in screen.lines)
    assert "3/10" in screen.lines[0]


def test_the_cursor_is_never_left_hidden(started, screen):
    live = started()
    run_iteration(live, 0, 0.1)
    assert screen.getvalue().rfind("\x1b[?25h") > screen.getvalue().rfind("\x1b[?25l")


def test_the_display_shows_the_stage_that_runs(started, screen):
    live = started()
    live._drawn_s = 0.0
    live.stage("between/iteration/learner.update")
    assert screen.lines[-1] == "now learner.update"
