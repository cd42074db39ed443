# SPDX-License-Identifier: Apache-2.0
import json
import threading
import time

import pytest

from m2flow.observe import spans as spans_module
from m2flow.observe.spans import Spans, short, stages


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets by hand."""
    now = {"s": 100.0}
    monkeypatch.setattr(time, "perf_counter", lambda: now["s"])
    return now


def generate(spans, clock):
    with spans.open("generate"):
        clock["s"] += 1.0
        with spans.open("prefill"):
            clock["s"] += 0.25


def test_spans_of_one_path_add_up_and_children_stand_under_their_parent(clock):
    spans = Spans()
    with spans.open("iteration"):
        for _ in range(2):
            generate(spans, clock)
        clock["s"] += 0.5
    assert spans.take(0) == {"iteration": 3.0, "generate": 2.5, "generate/prefill": 0.5}


def test_what_was_taken_is_not_given_again(clock):
    spans = Spans()
    with spans.open("iteration"):
        clock["s"] += 1.0
    spans.take(0)
    assert spans.take(1) == {}


def test_a_span_between_iterations_is_told_apart(clock):
    spans = Spans()
    with spans.open("checkpoint"):
        clock["s"] += 2.0
    with spans.open("iteration"):
        clock["s"] += 1.0
    assert spans.take(1) == {"between/checkpoint": 2.0, "iteration": 1.0}


def test_another_thread_has_its_own_nesting(clock):
    spans = Spans()

    def work():
        with spans.open("upload"), spans.open("part"):
            clock["s"] += 1.0

    with spans.open("iteration"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert spans.take(0) == {"iteration": 1.0, "background/upload": 1.0, "background/upload/part": 1.0}


def test_a_span_counts_although_its_block_raised(clock):
    spans = Spans()
    with pytest.raises(ValueError), spans.open("iteration"):
        clock["s"] += 1.5
        raise ValueError
    with spans.open("iteration"):
        clock["s"] += 1.0
    assert spans.take(0) == {"iteration": 2.5}


def test_no_span_of_many_threads_is_lost():
    spans = Spans()
    counts = []

    def work():
        for _ in range(2000):
            with spans.open("x"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counts.append(len(spans.done))
        spans.take(0)
    spans.take(0)
    assert spans._num_events == 8000


def test_stages_add_up_to_the_iteration_and_what_lies_around_it():
    times = {"iteration": 3.0, "a": 1.0, "a/b": 0.5, "c": 0.5, "between/save": 0.25, "background/copy": 9.0}
    assert stages(times) == {"a": 1.0, "c": 0.5, "other": 1.5, "between/save": 0.25}


def test_paths_leave_the_iteration_out():
    assert [short(p) for p in ("between/iteration", "between/iteration/a/b", "between/save", "background/x")] == [
        "iteration",
        "a/b",
        "between/save",
        "background/x",
    ]


def test_the_trace_is_what_chrome_and_perfetto_read(tmp_path, clock):
    spans = Spans()
    with spans.open("iteration"):
        clock["s"] += 1.0
        with spans.open("update"):
            clock["s"] += 0.5
    spans.take(7)
    spans.write_trace(tmp_path / "trace.json", before=0)
    update, iteration = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (update["name"], update["ph"], update["dur"], update["args"]) == (
        "update",
        "X",
        500_000.0,
        {"iteration": 7, "path": "update"},
    )
    assert update["ts"] - iteration["ts"] == pytest.approx(1_000_000.0, abs=1)
    assert update["ts"] / 1e6 == pytest.approx(time.time() + 1.0, abs=60)


def test_a_resumed_run_adds_to_the_trace_of_the_iterations_that_stay(tmp_path, clock):
    path = tmp_path / "trace.json"
    first, second = Spans(), Spans()
    for iteration in range(4):
        with first.open("iteration"):
            clock["s"] += 1.0
        first.take(iteration)
    first.write_trace(path, before=0)
    with second.open("iteration"):
        clock["s"] += 1.0
    second.take(2)
    second.write_trace(path, before=2)
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["args"]["iteration"] for event in events] == [0, 1, 2]


def test_a_long_trace_keeps_its_newest_spans_and_says_how_many_it_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(spans_module, "MAX_EVENTS", 10)
    spans = Spans()
    for iteration in range(25):
        with spans.open("iteration"):
            pass
        spans.take(iteration)
    spans.write_trace(tmp_path / "trace.json", before=0)
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert [event["args"]["iteration"] for event in trace["traceEvents"]] == list(range(15, 25))
    assert trace["otherData"]["spans_left_out"] == 15


def test_a_span_costs_less_than_five_microseconds():
    spans = Spans(on_enter=lambda path: None)

    def cost_s() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            with spans.open("x"):
                pass
        return (time.perf_counter() - start) / 1000

    assert min(cost_s() for _ in range(20)) < 5e-6
