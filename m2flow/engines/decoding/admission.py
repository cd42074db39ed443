# SPDX-License-Identifier: Apache-2.0
"""Which prompts begin next: in order, as many as there is room for, and not one by one."""

from collections import deque
from dataclasses import dataclass

from m2flow.engines.decoding.cohort import Lane, Pending
from m2flow.errors import EngineError

SHARE = 4
"""New prompts wait until one row in so many is free, because few tokens and small cohorts make slow steps."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What generation may use at a time."""

    max_batch_size: int
    max_prefill_tokens: int
    max_cache_tokens: int


class Admission:
    """The samples that have not begun.

    Raises:
        EngineError: one sample of a prompt needs more of the cache than there is.
    """

    def __init__(self, groups: list[Pending], room: Room, *, max_new_tokens: int) -> None:
        self.room = room
        self.max_new_tokens = max_new_tokens
        self._waiting = deque(lane for group in groups for lane in self._lanes(group))

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def _lanes(self, group: Pending) -> list[Lane]:
        """One lane for the group, or several where the batch or the cache is too small for all its samples."""
        left = self.room.max_cache_tokens - len(group.prompt_ids)
        most = min(self.room.max_batch_size, left // self.max_new_tokens)
        if most < 1:
            raise EngineError(
                f"prompt '{group.prompt.id}' has {len(group.prompt_ids)} tokens; with max_new_tokens "
                f"{self.max_new_tokens} that is more than the engine's max_cache_tokens "
                f"of {self.room.max_cache_tokens}: raise it"
            )
        starts = range(0, group.num_samples, most)
        return [Lane(pending=group, indices=range(i, min(i + most, group.num_samples))) for i in starts]

    def next(self, *, used_rows: int, used_tokens: int) -> list[Lane]:
        """The lanes that begin now; none where it is better to wait. They are no longer waiting then."""
        rows = self.room.max_batch_size - used_rows
        if used_rows and rows * SHARE < self.room.max_batch_size and not self._all_fit(rows):
            return []
        tokens, budget = self.room.max_cache_tokens - used_tokens, self.room.max_prefill_tokens
        chosen: list[Lane] = []
        while self._waiting:
            lane = self._waiting[0]
            rows -= len(lane.indices)
            budget -= lane.num_prompt_tokens
            too_much = rows < 0 or self._cache_tokens([*chosen, lane]) > tokens
            if too_much or (chosen and budget < 0):
                break
            chosen.append(self._waiting.popleft())
        return chosen

    def _all_fit(self, rows: int) -> bool:
        return sum(len(lane.indices) for lane in self._waiting) <= rows

    def _cache_tokens(self, lanes: list[Lane]) -> int:
        """What these need as a cohort, whose prompts all take the room of the longest."""
        prompts = len(lanes) * max(lane.num_prompt_tokens for lane in lanes)
        return prompts + sum(len(lane.indices) for lane in lanes) * self.max_new_tokens
