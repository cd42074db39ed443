# SPDX-License-Identifier: Apache-2.0
"""The few metrics that every display leads with, and how numbers are written for a person."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    """One quantity and the names it may have; the first that was logged is taken."""

    label: str
    names: tuple[str, ...]

    def key(self, logged: Sequence[str]) -> str | None:
        """The metric to show; ``None`` where no name was logged."""
        return next((name for name in self.names if name in logged), None)

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """The metric's value."""
        key = self.key(list(metrics))
        return None if key is None else metrics[key]


REWARD = Headline("reward", ("reward/mean", "reward"))
SUCCESS = Headline("success", ("episode/success_at_end",))
"""Of the episodes that were learned from."""
HELD_OUT = Headline("held-out", ("held_out/mean", "held_out/success_at_end", "held_out/return_mean"))
KL = Headline("KL", ("policy/reference_kl", "policy/approx_kl"))
"""Of the reference, which is what a run bounds, and else of the update itself."""
SPEEDS = (
    Headline("tokens/s", ("throughput/tokens_per_s",)),
    Headline("ticks/s", ("throughput/ticks_per_s",)),
)
AMOUNTS = (Headline("tokens", ("learner/tokens",)), Headline("ticks", ("learner/ticks",)))
"""What an update was made of: a run logs one of them."""
SECONDS = Headline("iteration", ("time/iteration_s",))

BLOCKS = "▁▂▃▄▅▆▇█"


def figure(value: float | None, digits: int = 3) -> str:
    """A number in about ``digits`` significant digits, with separators where it is large; a dash where there is
    none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if size >= 1e15:
        return scientific(value, digits)
    if size >= 10**digits:
        return f"{value:,.0f}"
    if 1e-3 <= size < 1e-2:
        return f"{value:.{digits}g}"
    if size >= 1e-2:
        decimals = digits - 1 - math.floor(math.log10(size))
        return f"{value:.{max(decimals, 0)}f}"
    return scientific(value, digits)


def scientific(value: float, digits: int = 3) -> str:
    """A number as 2.5e-4."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def clock(seconds: float) -> str:
    """A duration: 4.2 s, 3:07, 2:13:07, 1 d 02:13."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The course of ``values`` in at most ``width`` characters; values that are not finite are left out."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    num_bins = min(width, len(finite))
    edges = [len(finite) * index // num_bins for index in range(num_bins + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((mean - low) / (high - low) * top) if high > low else top // 2] for mean in means)
