# SPDX-License-Identifier: Apache-2.0
"""Cutting a mini-batch into micro-batches of about equal size, under a bound of packed tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from m2flow.errors import LearnerError
from m2flow.trainers.packing.layout import row_tokens


@dataclass(frozen=True)
class Sizes:
    """How large samples are, by their number."""

    groups: Sequence[int]
    """Each sample's group."""
    prompts: Sequence[int]
    """Tokens of each sample's prompt."""
    responses: Sequence[int]
    """Tokens of each response."""

    def packed(self, rows: Sequence[int]) -> int:
        """Tokens of a row that holds these samples of one group."""
        return row_tokens(self.prompts[rows[0]], [self.responses[row] for row in rows])

    def total(self, rows: Sequence[int]) -> int:
        """Tokens of a row that holds these samples of any groups."""
        return sum(self.packed(members) for members in _by_group(rows, self))


@dataclass
class _Bin:
    tokens: int = 0
    rows: list[int] = field(default_factory=list)


def cut(rows: Sequence[int], sizes: Sizes, *, bound: int, multiple: int = 1) -> list[list[int]]:
    """``rows`` (sample numbers) in micro-batches of at most ``bound`` packed tokens each, samples of a group together.

    A group that is larger than the bound is split into parts, each of which carries the prompt. Largest first, each to
    the emptiest micro-batch. Their number is a multiple of ``multiple``, for which further groups are split.

    Raises:
        LearnerError: a prompt with a single response is larger than the bound.
    """
    parts = [part for members in _by_group(rows, sizes) for part in _split(members, sizes, bound=bound)]
    num_bins = -(-sum(map(sizes.packed, parts)) // (bound * multiple)) * multiple
    while (bins := _fill(parts, sizes, num_bins=num_bins)) and max(b.tokens for b in bins) > bound:
        num_bins += multiple
    return [sorted(b.rows) for b in bins if b.rows]


def _by_group(rows: Sequence[int], sizes: Sizes) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(sizes.groups[row], []).append(row)
    return list(groups.values())


def _split(members: list[int], sizes: Sizes, *, bound: int) -> list[list[int]]:
    """One group in parts that fit, made by halving."""
    if sizes.packed(members) <= bound:
        return [members]
    if len(members) == 1:
        raise LearnerError(
            f"a prompt of {sizes.prompts[members[0]]} tokens with a response of {sizes.responses[members[0]]} "
            f"takes {sizes.packed(members)} packed tokens, more than max_tokens_per_microbatch={bound}: raise that, "
            "or shorten prompts or sampling.max_new_tokens"
        )
    half = len(members) // 2
    return [*_split(members[:half], sizes, bound=bound), *_split(members[half:], sizes, bound=bound)]


def _at_least(num: int, parts: list[list[int]]) -> list[list[int]]:
    """``num`` parts or more, by halving those with most samples, as far as there are samples."""
    parts = list(parts)
    while 0 < len(parts) < num and len(largest := max(parts, key=len)) > 1:
        parts.remove(largest)
        half = len(largest) // 2
        parts += [largest[:half], largest[half:]]
    return parts


def _fill(parts: list[list[int]], sizes: Sizes, *, num_bins: int) -> list[_Bin]:
    bins = [_Bin() for _ in range(num_bins)]
    for part in sorted(_at_least(num_bins, parts), key=sizes.packed, reverse=True):
        emptiest = min(bins, key=lambda b: b.tokens)
        emptiest.tokens += sizes.packed(part)
        emptiest.rows += part
    return bins
