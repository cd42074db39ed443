# SPDX-License-Identifier: Apache-2.0
"""Curves as SVG text: few enough points to stay small, their range kept, gaps where there is no number."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from m2flow.observe.headlines import scientific

MAX_POINTS = 240
"""A longer curve becomes that many buckets: a line through their means, a band from their least to their largest."""
SMOOTHED_FROM = 30
"""Noisy curves of at least so many points, and no buckets, are drawn faint, with a smooth line over them."""
LARGEST = 1e100
"""Sums of larger values could overflow, so they count as infinite."""
TICKS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Curve:
    """One metric over iterations; ``y`` is None where nothing finite was logged."""

    label: str
    x: list[float]
    y: list[float | None]
    low: list[float | None]
    high: list[float | None]
    num_missing: int
    """How many logged values were NaN or infinite."""
    reach: tuple[float, float]
    """First and last iteration, which lie outside of the first and last bucket's middle."""

    @property
    def bucketed(self) -> bool:
        """Whether points stand for several iterations each."""
        return self.low != self.y or self.high != self.y


def curve(label: str, points: Sequence[tuple[float, float]], *, max_points: int = MAX_POINTS) -> Curve:
    """The curve through (iteration, value) pairs, in buckets of equal numbers of points where there are too many."""
    num = min(len(points), max_points)
    cuts = [len(points) * index // num for index in range(num + 1)] if num else [0]
    buckets = [points[a:b] for a, b in itertools.pairwise(cuts)]
    finite = [[value for _, value in bucket if abs(value) <= LARGEST] for bucket in buckets]
    return Curve(
        label=label,
        x=[sum(x for x, _ in bucket) / len(bucket) for bucket in buckets],
        y=[sum(values) / len(values) if values else None for values in finite],
        low=[min(values, default=None) for values in finite],
        high=[max(values, default=None) for values in finite],
        num_missing=len(points) - sum(map(len, finite)),
        reach=(points[0][0], points[-1][0]) if points else (0, 0),
    )


@dataclass(frozen=True)
class Frame:
    """Where a plot's numbers lie on its drawing."""

    width: int
    height: int
    x: tuple[float, float]
    """First and last iteration."""
    y: tuple[float, float]
    """Lowest and highest value drawn."""
    left: int = 50
    right: int = 10
    top: int = 8
    bottom: int = 20

    def at_x(self, value: float) -> float:
        """Horizontal position of an iteration."""
        low, high = self.x
        share = (value - low) / (high - low) if high > low else 0.5
        return self.left + share * (self.width - self.left - self.right)

    def at_y(self, value: float) -> float:
        """Vertical position of a value."""
        low, high = self.y
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def describe(self) -> dict[str, Any]:
        """For the script that shows values under the pointer."""
        return {"w": self.width, "h": self.height, "x": list(self.x), "y": list(self.y)} | {
            "m": [self.left, self.right, self.top, self.bottom]
        }


def tick_step(low: float, high: float, *, target: int) -> float:
    """A round distance between about ``target`` ticks."""
    rough = (high - low) / max(target, 1)
    size = 10.0 ** math.floor(math.log10(rough))
    return next(size * factor for factor in TICKS if size * factor >= rough * (1 - 1e-9))


def ticks(low: float, high: float, *, target: int) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``, about ``target`` of them."""
    step = tick_step(low, high, target=target)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def value_ticks(values: Sequence[float]) -> list[float]:
    """Tick values of the vertical axis for finite ``values``; an axis of at least some height."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = max(abs(low), abs(high), 1e-12) * 1e-6
    if high - low <= room:
        low, high = min(0.0, 2 * low), max(0.0, 2 * high)
    if high - low < 1 / LARGEST:
        low, high = 0.0, 1.0
    return ticks(low, high, target=4)


def tick_text(value: float, step: float) -> str:
    """A tick's label, in no more digits than the step between ticks needs."""
    if abs(value) < step / 2:
        return "0"
    if step < 1e-4 or abs(value) >= 1e9:
        return scientific(value)
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if step >= size / 10 and abs(value) >= size:
            return f"{value / size:g}{letter}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    decimals += not math.isclose(step * 10**decimals, round(step * 10**decimals), rel_tol=1e-6)
    return f"{value:.{decimals}f}"


def plot(curves: Sequence[Curve], *, width: int = 380, height: int = 170) -> tuple[str, dict[str, Any]]:
    """One drawing of ``curves`` on common axes, and the data that the page's script needs for it."""
    values = [value for c in curves for value in (*c.low, *c.high) if value is not None]
    marks = value_ticks(values)
    reach = (min((c.reach[0] for c in curves), default=0), max((c.reach[1] for c in curves), default=0))
    frame = Frame(width, height, reach, (marks[0], marks[-1]))
    body = [*axes(frame, marks)]
    for index, one in enumerate(curves):
        body.extend(_line(frame, one, index=index))
    series = [_series(one) for one in curves]
    return svg(frame, body), {"frame": frame.describe(), "series": series}


def _series(one: Curve) -> dict[str, Any]:
    series: dict[str, Any] = {"label": one.label, "x": [_short(x) for x in one.x], "y": [_short(y) for y in one.y]}
    if one.bucketed:
        series |= {"low": [_short(y) for y in one.low], "high": [_short(y) for y in one.high]}
    return series


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def svg(frame: Frame, body: Sequence[str]) -> str:
    """A drawing that scales with the page."""
    return f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img">{"".join(body)}</svg>'


def axes(frame: Frame, marks: Sequence[float]) -> Iterator[str]:
    """Grid lines and labels."""
    right = frame.width - frame.right
    for mark in marks:
        y = frame.at_y(mark)
        yield f'<line class="grid" x1="{frame.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        text = tick_text(mark, marks[1] - marks[0])
        yield f'<text x="{frame.left - 6}" y="{y + 3.2:.1f}" text-anchor="end">{text}</text>'
    for mark in iteration_ticks(*frame.x, target=frame.width // 90):
        x = frame.at_x(mark)
        yield f'<text x="{x:.1f}" y="{frame.height - 5}" text-anchor="middle">{mark:,}</text>'


def iteration_ticks(low: float, high: float, *, target: int) -> list[int]:
    """Whole iterations to label."""
    if high - low < 1:
        return [round(low)]
    step = math.ceil(tick_step(low, high, target=target))
    return list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))


def _line(frame: Frame, one: Curve, *, index: int) -> Iterator[str]:
    kind = f"s{index}"
    if one.bucketed:
        yield f'<path class="band {kind}" d="{_band(frame, one)}"/>'
        yield f'<path class="line {kind}" d="{_path(frame, one.x, ys=one.y)}"/>'
        return
    known = [(x, y) for x, y in zip(one.x, one.y, strict=True) if y is not None]
    if len(known) < SMOOTHED_FROM:
        # Few points are rare ones (an evaluation now and then): the line runs over the iterations without one.
        yield f'<path class="line {kind}" d="{_path(frame, one.x, ys=one.y)}"/>'
        yield from (
            f'<circle class="dot {kind}" cx="{frame.at_x(x):.1f}" cy="{frame.at_y(y):.1f}" r="2.4"/>' for x, y in known
        )
        return
    if not noisy([y for _, y in known]):
        yield f'<path class="line {kind}" d="{_path(frame, one.x, ys=one.y)}"/>'
        return
    yield f'<path class="faint {kind}" d="{_path(frame, one.x, ys=one.y)}"/>'
    yield f'<path class="line {kind}" d="{_path(frame, one.x, ys=smoothed(one.y))}"/>'


def noisy(values: Sequence[float]) -> bool:
    """Whether a curve goes up and down far more than from its least to its largest value."""
    travelled = sum(abs(b - a) for a, b in itertools.pairwise(values))
    return travelled > 2 * (max(values) - min(values))


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Means under a Gaussian window around each value, so that the line does not lag; gaps stay gaps."""
    spread = max(1.0, len(values) / 45)
    reach = math.ceil(3 * spread)
    window = [math.exp(-0.5 * (offset / spread) ** 2) for offset in range(-reach, reach + 1)]
    return [None if value is None else _window_mean(values, index, window=window) for index, value in enumerate(values)]


def _window_mean(values: Sequence[float | None], centre: int, *, window: Sequence[float]) -> float:
    first = centre - len(window) // 2
    pairs = [
        (weight, value)
        for index, weight in enumerate(window, start=first)
        if 0 <= index < len(values) and (value := values[index]) is not None
    ]
    return sum(weight * value for weight, value in pairs) / sum(weight for weight, _ in pairs)


def _path(frame: Frame, xs: Sequence[float], *, ys: Sequence[float | None]) -> str:
    parts, pen_down = [], False
    for x, y in zip(xs, ys, strict=True):
        if y is not None:
            parts.append(f"{'L' if pen_down else 'M'}{frame.at_x(x):.1f} {frame.at_y(y):.1f}")
        pen_down = y is not None
    return "".join(parts)


def _band(frame: Frame, one: Curve) -> str:
    known = [(x, a, b) for x, a, b in zip(one.x, one.low, one.high, strict=True) if a is not None and b is not None]
    upper = [f"{frame.at_x(x):.1f} {frame.at_y(b):.1f}" for x, _, b in known]
    lower = [f"{frame.at_x(x):.1f} {frame.at_y(a):.1f}" for x, a, _ in reversed(known)]
    return f"M{'L'.join([*upper, *lower])}Z" if known else ""


def columns(names: Sequence[str], rows: Sequence[tuple[float, Mapping[str, float]]]) -> tuple[str, dict[str, Any]]:
    """Stacked columns, one a row of (iteration, seconds per name), the first name at the bottom."""
    highest = max((sum(parts.values()) for _, parts in rows), default=0.0)
    marks = ticks(0.0, highest or 1.0, target=4)
    half = (rows[-1][0] - rows[0][0]) / max(len(rows) - 1, 1) / 2 if rows else 0.0
    xs = (rows[0][0] - half, rows[-1][0] + half) if rows else (0, 0)
    frame = Frame(1120, 220, xs, (0.0, marks[-1]))
    room = (frame.width - frame.left - frame.right) / max(len(rows), 1)
    gap = min(2.0, room * 0.15)
    body = [*axes(frame, marks)]
    for position, (_, parts) in enumerate(rows):
        body.extend(
            _column(frame, names, parts=parts, place=(frame.left + (position + 0.5) * room, min(room - gap, 90.0)))
        )
    series = [
        {"label": n, "x": [_short(x) for x, _ in rows], "y": [_short(p.get(n, 0.0)) for _, p in rows]} for n in names
    ]
    return svg(frame, body), {"frame": frame.describe(), "series": series, "stacked": True}


def _column(
    frame: Frame, names: Sequence[str], *, parts: Mapping[str, float], place: tuple[float, float]
) -> Iterator[str]:
    centre, width = place
    x = centre - width / 2
    below = 0.0
    for index, name in enumerate(names):
        seconds = parts.get(name, 0.0)
        top, bottom = frame.at_y(below + seconds), frame.at_y(below)
        below += seconds
        if bottom - top > 0.05:
            size = f'width="{width:.1f}" height="{bottom - top:.1f}"'
            yield f'<rect class="fill s{index}" x="{x:.1f}" y="{top:.1f}" {size}/>'


def spark(values: Sequence[float], *, width: int = 120, height: int = 30) -> str:
    """A small curve without axes."""
    one = curve("", list(enumerate(values)), max_points=60)
    known = [y for y in one.y if y is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    room = (low, high) if high > low else (low - 1, high + 1)
    frame = Frame(width, height, (one.x[0], one.x[-1]), room, left=1, right=1, top=2, bottom=2)
    line = _path(frame, one.x, ys=one.y)
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" aria-hidden="true"><path class="line s0" d="{line}"/></svg>'
    )
