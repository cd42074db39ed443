# SPDX-License-Identifier: Apache-2.0
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2flow.observe.curves import Frame, columns, curve, iteration_ticks, plot, smoothed, spark, tick_text, value_ticks


def test_a_short_curve_is_its_points():
    one = curve("x", [(0, 1.0), (1, 3.0), (2, 2.0)])
    assert (one.x, one.y, one.bucketed, one.num_missing) == ([0, 1, 2], [1.0, 3.0, 2.0], False, 0)


def test_a_long_curve_becomes_buckets_that_keep_mean_least_and_largest():
    one = curve("x", [(i, float(i % 4)) for i in range(400)], max_points=100)
    assert one.x[:2] == [1.5, 5.5]
    assert (set(one.y), set(one.low), set(one.high)) == ({1.5}, {0.0}, {3.0})
    assert one.bucketed


def test_no_spike_is_lost_in_buckets():
    points = [(i, 0.0) for i in range(10_000)]
    points[4321] = (4321, 50.0)
    assert max(value for value in curve("x", points).high if value is not None) == 50.0


def test_values_that_are_not_finite_are_gaps_and_counted():
    one = curve("x", [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)])
    assert (one.y, one.num_missing) == ([1.0, None, None, 2.0], 2)
    drawing, data = plot([one])
    (path,) = re.findall(r'class="line s0" d="([^"]*)"', drawing)
    assert path.count("M") == 2
    assert data["series"][0]["y"] == [1.0, None, None, 2.0]


def test_the_line_goes_through_the_corners_of_its_frame():
    frame = Frame(380, 170, (0, 10), (0.0, 2.0))
    assert (frame.at_x(0), frame.at_x(10)) == (50, 370)
    assert (frame.at_y(0.0), frame.at_y(2.0)) == (150, 8)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_values_give_a_drawing_of_finite_numbers(values):
    drawing, _ = plot([curve("x", list(enumerate(values)), max_points=20)])
    coordinates = re.findall(r' (?:x1|y1|cx|cy|x|y)="([^"]*)"', drawing) + re.findall(r"[ML]([-\d.]+) ", drawing)
    assert coordinates and all(math.isfinite(float(text)) for text in coordinates)
    assert "nan" not in drawing and "inf" not in drawing


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([0.31, 0.95], [0.2, 0.4, 0.6, 0.8, 1.0]),
        ([0.0, 0.0], [0.0, 0.25, 0.5, 0.75, 1.0]),
        ([5.0], [0.0, 2.5, 5.0, 7.5, 10.0]),
        ([-3.0, 7.0], [-5.0, -2.5, 0.0, 2.5, 5.0, 7.5]),
        ([], [0.0, 0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_ticks_are_round_and_hold_all_values(values, marks):
    assert value_ticks(values) == pytest.approx(marks)


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (0.2, 0.2, "0.2"),
        (0.25, 0.25, "0.25"),
        (0.0, 0.5, "0"),
        (6500.0, 500.0, "6.5k"),
        (2e6, 1e6, "2M"),
        (7.5e-5, 2.5e-5, "7.5e-5"),
    ],
)
def test_tick_labels_have_no_more_digits_than_they_need(value, step, text):
    assert tick_text(value, step) == text


def test_iterations_are_labelled_by_whole_numbers():
    assert iteration_ticks(0, 3, target=8) == [0, 1, 2, 3]
    assert iteration_ticks(0, 99, target=4) == [0, 25, 50, 75]
    assert iteration_ticks(7, 7, target=4) == [7]


def test_the_smooth_line_keeps_constants_and_gaps_and_does_not_lag():
    assert smoothed([2.0] * 50) == pytest.approx([2.0] * 50)
    assert smoothed([1.0, None, 1.0])[1] is None
    line = smoothed([float(i) for i in range(100)])
    assert line[20:80] == pytest.approx([float(i) for i in range(20, 80)])


def test_only_a_noisy_curve_is_smoothed():
    steady, _ = plot([curve("x", [(i, float(i)) for i in range(100)])])
    noisy, _ = plot([curve("x", [(i, float(i % 2)) for i in range(100)])])
    assert ("faint" in steady, "faint" in noisy) == (False, True)


def test_stacked_columns_are_as_high_as_their_seconds():
    drawing, data = columns(["a", "b"], [(0, {"a": 1.0, "b": 3.0}), (1, {"a": 2.0})])
    heights = [float(h) for h in re.findall(r'<rect [^>]*height="([\d.]+)"', drawing)]
    assert heights == pytest.approx([192 / 4, 192 * 3 / 4, 192 / 2], abs=0.1)
    assert data["series"][1] == {"label": "b", "x": [0, 1], "y": [3.0, 0.0]}


def test_a_spark_needs_two_points():
    assert spark([1.0]) == "" and spark([]) == "" and "<path" in spark([1.0, 1.0])


@pytest.mark.parametrize("num", [1, 2, 9, 100])
def test_a_column_stands_over_its_iteration_on_the_axis(num):
    drawing, data = columns(["a"], [(5 + i, {"a": 1.0}) for i in range(num)])
    boxes = re.findall(r'<rect [^>]*x="([\d.]+)"[^>]*width="([\d.]+)"', drawing)
    (low, high), (left, right, *_), width = data["frame"]["x"], data["frame"]["m"], data["frame"]["w"]
    places = [(5 + i - low) / (high - low) if high > low else 0.5 for i in range(num)]
    wanted = [left + place * (width - left - right) for place in places]
    assert [float(x) + float(w) / 2 for x, w in boxes] == pytest.approx(wanted, abs=0.11)
