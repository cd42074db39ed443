# SPDX-License-Identifier: Apache-2.0
"""``report.html``: one file that tells what a run did, made of nothing but what lies in the run's folder.

It loads nothing from anywhere, works without its script (which adds values under the pointer and filters), and shows
what the model wrote as text: everything is escaped, and a content policy forbids any script but the page's own.
"""

import base64
import hashlib
import html
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from m2flow.errors import M2flowError
from m2flow.observe import curves
from m2flow.observe.headlines import AMOUNTS, HELD_OUT, REWARD, SPEEDS, SUCCESS, Headline, clock, figure
from m2flow.observe.line_file import number, read, replace
from m2flow.observe.sample_table import shown
from m2flow.observe.spans import BACKGROUND, BETWEEN, ROOT, stages

MAX_SAMPLES = 240
MAX_SAMPLE_BYTES = 600_000
"""How much of the page all samples together may take; longer texts are cut."""
MAX_FILMS = 4
MAX_FILM_BYTES = 4_000_000
"""A larger film is left in its file."""
MAX_CURVE_POINTS = 18_000
"""How many points all curves together may have."""
MAX_COLUMNS = 112
"""Columns in the picture of where the time went."""
NUM_COLOURS = 8
UNSEEN = {code: "\ufffd" for code in (*range(32), 127) if chr(code) not in "\n\t"}
"""Control characters, which have no place in HTML; those of samples are written out before (``shown``)."""
GROUP_ORDER = ("reward", "held_out", "policy", "rollout", "throughput")

Points = dict[str, list[tuple[float, float]]]
"""(iteration, value) pairs of each metric."""


def write(folder: Path, *, total_iterations: int | None = None) -> Path:
    """Make ``report.html`` in a run's folder, from config.json, metrics.jsonl and samples.jsonl there.

    Raises:
        M2flowError: a file is damaged, or the disk is full.
    """
    # Not needed by anything but this page, which is made once a run.
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    source = files("m2flow.observe")
    style, script, template = (
        (source / name).read_text("utf-8") for name in ("report.css", "report.js", "report.html.jinja")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.from_string(template).render(
        style=style, script=script, script_hash=f"sha256-{digest}", **contents(folder, total_iterations)
    )
    replace(folder / "report.html", page.translate(UNSEEN).encode("utf-8", "replace"))
    return folder.resolve() / "report.html"


def read_settings(folder: Path) -> dict[str, Any]:
    """The script's options out of config.json; empty where there is none."""
    return _config(folder).get("config", {})


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise M2flowError(f"{path} is damaged ({error}); restore it or delete it") from None


def contents(folder: Path, total_iterations: int | None) -> dict[str, Any]:
    """Everything that the template shows."""
    rows, settings = list(read(folder / "metrics.jsonl")), read_settings(folder)
    total = total_iterations or settings.get("iterations") or len(rows)
    points = _points(rows)
    charts = Charts()
    script = Path(_config(folder).get("script", "")).name
    return {
        "title": folder.resolve().name,
        "script_name": script,
        "began": time.strftime("%Y-%m-%d %H:%M", time.localtime(rows[0]["unix_time_s"])) if rows else "",
        "num_done": len(rows),
        "num_total": total,
        "cards": list(cards(rows, points, total=total)),
        "headline": _headline(points, charts),
        "groups": list(_groups(points, charts)),
        "times": time_section(rows, charts),
        "films": list(films(folder)),
        "samples": chosen_samples(list(read(folder / "samples.jsonl"))),
        "settings": list(setting_groups(settings)),
        "data": charts.data,
    }


def _points(rows: Sequence[Mapping[str, Any]]) -> Points:
    points: Points = {}
    for row in rows:
        for name, given in row.items():
            value = number(given)
            if value is not None and name not in ("iteration", "unix_time_s", "elapsed_s"):
                points.setdefault(name, []).append((row["iteration"], value))
    return points


class Charts:
    """Numbers the drawings and collects the data that the script needs."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []

    def add(self, drawn: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        """The template's view of a drawing: its SVG and its number."""
        from markupsafe import Markup

        svg, data = drawn
        self.data.append(data)
        # Drawn by curves.py out of numbers alone: labels of metrics are in ``data``, never in the SVG.
        return {"svg": Markup(svg), "number": len(self.data) - 1}


def cards(rows: Sequence[Mapping[str, Any]], points: Points, *, total: int) -> Iterator[dict[str, Any]]:
    """The summary."""
    from markupsafe import Markup

    for headline in (REWARD, SUCCESS, HELD_OUT):
        if found := _of(headline, points):
            values = [value for _, value in found]
            best = max(filter(math.isfinite, values), default=math.nan)
            yield {
                "label": headline.label,
                "first": figure(values[0]) if len(values) > 1 else "",
                "value": figure(values[-1]),
                "note": f"best {figure(best)}",
                "spark": Markup(curves.spark(values)),
            }
    yield {"label": "iterations", "value": f"{len(rows):,}", "note": f"of {total:,}"}
    for amount, found in ((amount, _of(amount, points)) for amount in AMOUNTS):
        if found:
            whole = sum(value for _, value in found)
            yield {
                "label": f"{amount.label} learned from",
                "value": figure(whole),
                "note": f"{figure(whole / len(found))} an iteration",
            }
    if rows:
        elapsed_s = rows[-1]["elapsed_s"]
        yield {"label": "wall time", "value": clock(elapsed_s), "note": f"{clock(elapsed_s / len(rows))} an iteration"}
    for speed, found in ((speed, _of(speed, points)) for speed in SPEEDS):
        if found:
            mean = sum(value for _, value in found) / len(found)
            yield {"label": speed.label, "value": figure(found[-1][1]), "note": f"mean {figure(mean)}"}


def films(folder: Path) -> Iterator[dict[str, str]]:
    """The last films, newest first, within the page."""
    paths = sorted((folder / "videos").glob("*.mp4"), key=lambda path: path.stem.rpartition("-")[2], reverse=True)
    for path in [path for path in paths if path.stat().st_size <= MAX_FILM_BYTES][:MAX_FILMS]:
        name, _, iteration = path.stem.rpartition("-")
        data = base64.b64encode(path.read_bytes()).decode()
        yield {"title": f"{name}, iteration {int(iteration)}", "source": f"data:video/mp4;base64,{data}"}


def _of(headline: Headline, points: Points) -> list[tuple[float, float]]:
    key = headline.key(list(points))
    return points[key] if key else []


def _headline(points: Points, charts: Charts) -> dict[str, Any] | None:
    found = [(headline.label, _of(headline, points)) for headline in (REWARD, SUCCESS, HELD_OUT)]
    lines = [curves.curve(label, values) for label, values in found if values]
    if not lines:
        return None
    return {**charts.add(curves.plot(lines, width=1120, height=280)), "labels": [line.label for line in lines]}


def _groups(points: Points, charts: Charts) -> Iterator[dict[str, Any]]:
    groups: dict[str, list[str]] = {}
    for name in points:
        group = name.partition("/")[0] if "/" in name else "other"
        if group != "time":
            groups.setdefault(group, []).append(name)
    num_metrics = max(sum(map(len, groups.values())), 1)
    max_points = min(curves.MAX_POINTS, max(MAX_CURVE_POINTS // num_metrics, 20))
    for group in sorted(groups, key=_rank):
        drawings = [_drawing(name, points[name], charts=charts, max_points=max_points) for name in groups[group]]
        # Four stand two by two, so that a group of one or two fits beside them.
        width = 2 if len(drawings) == 4 else min(len(drawings), 3)
        yield {"title": group.replace("_", " "), "charts": drawings, "width": width}


def _rank(group: str) -> tuple[int, str]:
    return (GROUP_ORDER.index(group) if group in GROUP_ORDER else len(GROUP_ORDER), group)


def _drawing(name: str, values: list[tuple[float, float]], *, charts: Charts, max_points: int) -> dict[str, Any]:
    one = curves.curve(name, values, max_points=max_points)
    label = name.partition("/")[2] or name
    return {
        **charts.add(curves.plot([one])),
        "name": name,
        "label": label.replace("_", " "),
        "last": figure(values[-1][1]),
        "num_missing": one.num_missing,
    }


def time_section(rows: Sequence[Mapping[str, Any]], charts: Charts) -> dict[str, Any] | None:
    """Where the time went: shares of the whole, columns over iterations, and a table of all spans."""
    timed = [(row["iteration"], _times(row)) for row in rows]
    totals: dict[str, float] = {}
    for _, times in timed:
        for path, seconds in times.items():
            totals[path] = totals.get(path, 0.0) + seconds
    parts = sorted(stages(totals).items(), key=lambda part: -part[1])
    whole = sum(seconds for _, seconds in parts)
    if not whole:
        return None
    names = [name for name, _ in parts[: NUM_COLOURS - 1]]
    rest = sum(seconds for _, seconds in parts[NUM_COLOURS - 1 :])
    shares = [*parts[: NUM_COLOURS - 1], *([("the rest", rest)] if rest else [])]
    drawing, data = curves.columns([name for name, _ in shares], list(_buckets(timed, names)))
    for series in data["series"]:
        series["label"] = _spoken(series["label"])
    return {
        "chart": charts.add((drawing, data)),
        "shares": [
            {"name": _spoken(name), "percent": seconds / whole * 100, "time": clock(seconds)}
            for name, seconds in shares
        ],
        "rows": list(_time_rows(totals, dict(parts), whole=whole)),
        "num_iterations": len(rows),
    }


def _times(row: Mapping[str, Any]) -> dict[str, float]:
    found = {
        name[5:-2]: number(value) for name, value in row.items() if name.startswith("time/") and name.endswith("_s")
    }
    return {path: seconds for path, seconds in found.items() if seconds is not None}


def _buckets(
    timed: Sequence[tuple[int, Mapping[str, float]]], names: Sequence[str]
) -> Iterator[tuple[float, dict[str, float]]]:
    num = min(len(timed), MAX_COLUMNS)
    for index in range(num):
        bucket = timed[len(timed) * index // num : len(timed) * (index + 1) // num]
        mean: dict[str, float] = {}
        for _, times in bucket:
            for name, seconds in stages(times).items():
                kept = name if name in names else "the rest"
                mean[kept] = mean.get(kept, 0.0) + seconds / len(bucket)
        yield sum(iteration for iteration, _ in bucket) / len(bucket), mean


def _time_rows(totals: Mapping[str, float], parts: Mapping[str, float], *, whole: float) -> Iterator[dict[str, Any]]:
    everything = {**parts, **{path: seconds for path, seconds in totals.items() if path != ROOT}}
    largest = {name: index for index, name in enumerate(parts)}

    def order(path: str) -> tuple[int, list[float]]:
        steps = path.split("/")
        heads = ["/".join(steps[: length + 1]) for length in range(len(steps))]
        return (path.startswith(f"{BACKGROUND}/"), [-everything.get(head, 0.0) for head in heads])

    for path in sorted(everything, key=order):
        seconds = everything[path]
        yield {
            "name": _spoken(path) if path in parts else path.rpartition("/")[2],
            "depth": 0 if path in parts else path.count("/"),
            "colour": min(largest[path], NUM_COLOURS - 1) if path in parts else None,
            "total": clock(seconds),
            "percent": f"{seconds / whole:.1%}",
            "seconds": seconds,
        }


def _spoken(path: str) -> str:
    group, _, name = path.rpartition("/")
    return f"{name} (between iterations)" if group == BETWEEN else path


def chosen_samples(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Samples of iterations spread over the run, the first and the last among them, cut to fit the page."""
    by_iteration: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_iteration.setdefault(row["iteration"], []).append(row)
    known = sorted(by_iteration)
    most = max((len(group) for group in by_iteration.values()), default=1)
    num = min(len(known), max(MAX_SAMPLES // most, 2))
    picked = sorted({known[round(index * (len(known) - 1) / max(num - 1, 1))] for index in range(num)})
    kept = [row for iteration in picked for row in by_iteration[iteration][:MAX_SAMPLES]]
    room = min(MAX_SAMPLE_BYTES // (2 * max(len(kept), 1)), 6000)
    return {
        "rows": [_sample(row, room) for row in kept],
        "iterations": picked,
        "left_out": len(rows) - len(kept),
    }


def _sample(row: Mapping[str, Any], room: int) -> dict[str, Any]:
    reward = number(row.get("reward"))
    parts = {name: figure(number(value)) for name, value in (row.get("rewards") or {}).items()}
    return {
        "iteration": row["iteration"],
        "prompt": _fit(shown(str(row.get("prompt", ""))), room),
        "completion": _fit(shown(str(row.get("completion", ""))), room),
        "reward": figure(reward),
        "tone": "none" if reward is None else "good" if reward > 0 else "bad",
        "parts": parts if len(parts) > 1 else {},
        "tokens": figure(number(row.get("tokens"))),
        "cut_off": row.get("finish_reason") == "length",
    }


def _fit(text: str, room: int) -> str:
    """``text`` in at most about ``room`` bytes of escaped UTF-8."""
    used = 0
    for index, character in enumerate(text):
        used += len(html.escape(character).encode("utf-8", "replace"))
        if used > room:
            return f"{text[:index]} … ({len(text) - index:,} more characters)"
    return text


def setting_groups(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The options, those of one Config together."""
    flat = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    if flat:
        yield {"title": "run", "options": [(name, _text(value)) for name, value in flat.items()]}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield {"title": name, "options": list(_flatten(value))}


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
