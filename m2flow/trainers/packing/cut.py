# SPDX-License-Identifier: Apache-2.0
"""Cutting a mini-batch into micro-batches of about equal size, under a bound of packed tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from m2flow.errors import LearnerError
from m2flow.trainers.packing.layout import row_tokens


@dataclass
class _Bin:
    tokens: int = 0
    rows: list[int] = field(default_factory=list)


def cut(
    rows: Sequence[int], *, prompt: Callable[[int], tuple[int, int]], response: Callable[[int], int], bound: int
) -> list[list[int]]:
    """``rows`` (sample numbers) in micro-batches of at most ``bound`` packed tokens each, samples of a group together.

    ``prompt(row)`` is (group number, prompt tokens), ``response(row)`` the response's tokens. A group that is larger
    than the bound is split into parts, each of which carries the prompt. Largest first, each to the emptiest
    micro-batch.

    Raises:
        LearnerError: a prompt with a single response is larger than the bound.
    """
    parts = [part for members in _by_group(rows, prompt) for part in _split(members, prompt, response, bound)]
    sizes = [_tokens(part, prompt, response) for part in parts]
    order = sorted(range(len(parts)), key=lambda i: -sizes[i])
    num_bins = -(-sum(sizes) // bound)
    while (bins := _fill(parts, sizes, order, num_bins, bound)) is None:
        num_bins += 1
    return [sorted(b.rows) for b in bins if b.rows]


def _tokens(part: Sequence[int], prompt: Callable[[int], tuple[int, int]], response: Callable[[int], int]) -> int:
    return row_tokens(prompt(part[0])[1], [response(row) for row in part])


def _by_group(rows: Sequence[int], prompt: Callable[[int], tuple[int, int]]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(prompt(row)[0], []).append(row)
    return list(groups.values())


def _split(
    members: list[int], prompt: Callable[[int], tuple[int, int]], response: Callable[[int], int], bound: int
) -> list[list[int]]:
    """One group in as few parts as the bound allows, about equal."""
    if _tokens(members, prompt, response) <= bound:
        return [members]
    if len(members) == 1:
        raise LearnerError(
            f"a prompt of {prompt(members[0])[1]} tokens with a response of {response(members[0])} takes "
            f"{_tokens(members, prompt, response)} packed tokens, more than max_tokens_per_microbatch={bound}: raise "
            "that, or shorten prompts or sampling.max_new_tokens"
        )
    half = len(members) // 2
    return [*_split(members[:half], prompt, response, bound), *_split(members[half:], prompt, response, bound)]


def _fill(parts: list[list[int]], sizes: list[int], order: list[int], num_bins: int, bound: int) -> list[_Bin] | None:
    bins = [_Bin() for _ in range(num_bins)]
    for i in order:
        emptiest = min(bins, key=lambda b: b.tokens)
        if emptiest.tokens + sizes[i] > bound:
            return None
        emptiest.tokens += sizes[i]
        emptiest.rows += parts[i]
    return bins
