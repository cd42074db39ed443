# SPDX-License-Identifier: Apache-2.0
"""Prompts that were admitted together, and their responses, which grow in lockstep until they end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from m2flow.data.samples import Group, Prompt, Sample
from m2flow.engines.decoding.cache import GROWTH, Decode, Gaps, Inputs, Piece, Prefill, Seats, Store
from m2flow.engines.decoding.stopping import Stopping


@dataclass(kw_only=True)
class Pending:
    """A group of which some samples are not finished."""

    prompt: Prompt
    prompt_ids: Int[np.ndarray, "P"]
    num_samples: int
    occurrence: int = 0
    """How often the same prompt stands before this one."""
    samples: list[Sample] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether all samples are there."""
        return len(self.samples) == self.num_samples

    def group(self, iteration: int) -> Group:
        """The finished group, samples in order."""
        ordered = sorted(self.samples, key=lambda sample: sample.index)
        return Group(prompt=self.prompt, prompt_ids=self.prompt_ids, samples=ordered, iteration=iteration)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Some samples of a group, all unless they are more than the batch holds, that share one prompt in the cache."""

    pending: Pending
    indices: range

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.pending.prompt_ids)


class Cohort:
    """``lanes`` and a row for each of their samples that has not ended: row i of every column belongs to the same one.

    Args:
        uniforms: random numbers of each sample, lane after lane: one for each token that it may have.
    """

    def __init__(
        self, lanes: Sequence[Lane], uniforms: Float[np.ndarray, "rows max_new"], *, device: torch.device
    ) -> None:
        self.lanes = list(lanes)
        self.device = device
        self.max_new_tokens = uniforms.shape[1]
        self.num_prefilled = 0
        """Prompt tokens in the cache; lanes are filled one after another."""
        self._num_last_prefilled = 0
        self.num_made = 0
        """Tokens that each response has."""
        self._columns = {
            "lane": np.repeat(np.arange(len(lanes)), [len(lane.indices) for lane in lanes]),
            "index": np.concatenate([np.asarray(lane.indices) for lane in lanes]),
            "uniforms": uniforms,
            "tokens": np.empty(uniforms.shape, np.int64),
            "versions": np.empty(uniforms.shape, np.int32),
            **{name: np.empty(uniforms.shape, np.float32) for name in ("logprobs", "sampled_logprobs", "entropies")},
        }
        self._prompts = Store(len(lanes), max(lane.num_prompt_tokens for lane in lanes))
        self._responses = Store(len(uniforms), min(GROWTH, self.max_new_tokens))
        self._arrange()

    def _arrange(self) -> None:
        """Seats and mask for the lanes and rows that there are now."""
        self._seats = Seats.of(self._columns["lane"], len(self.lanes), device=self.device)
        lengths = torch.tensor([lane.num_prompt_tokens for lane in self.lanes])
        padding = torch.arange(self._prompts.capacity) >= lengths[:, None]
        mask = torch.zeros(padding.shape).masked_fill_(padding, -torch.inf)[:, None, None, :]
        self._prompt_mask = mask.to(self.device) if bool(padding.any()) else None
        self._prompt_tokens = lengths.numpy()

    @property
    def num_rows(self) -> int:
        """Samples that have not ended."""
        return self._responses.num_rows

    @property
    def num_cache_tokens(self) -> int:
        """Tokens that the cache must have room for until the end, those of padded prompts and spare rows included."""
        prompts, responses = self._prompts, self._responses
        return prompts.num_allocated * prompts.capacity + responses.num_allocated * self.max_new_tokens

    @property
    def is_prefilled(self) -> bool:
        """Whether the prompts are in the cache."""
        return self.num_prefilled == self._prompt_tokens.sum()

    @property
    def prompt_ends(self) -> Int[np.ndarray, "lanes"]:
        """Where the prompts end among the tokens of the prefill that completes them."""
        begin = self._prompt_tokens.sum() - self._num_last_prefilled
        return self._prompt_tokens.cumsum() - 1 - begin

    @property
    def lane_of_row(self) -> Int[np.ndarray, "rows"]:
        """The lane that each row belongs to."""
        return self._columns["lane"]

    @property
    def sample_of_row(self) -> Int[np.ndarray, "rows"]:
        """The number of each row's sample in its group."""
        return self._columns["index"]

    @property
    def next_uniforms(self) -> Float[np.ndarray, "rows"]:
        """The random number for each row's next token."""
        return self._columns["uniforms"][:, self.num_made]

    def prefill(self, max_tokens: int) -> Inputs:
        """The next ``max_tokens`` of the prompts, or fewer: how they attend, the tokens, and their positions."""
        pieces, budget, begin = [], max_tokens, 0
        for number, length in enumerate(self._prompt_tokens):
            start = max(self.num_prefilled - begin, 0)
            stop = min(length, start + budget)
            if stop > start:
                pieces.append(Piece(number, int(start), int(stop)))
                budget -= stop - start
            begin += length
        self._num_last_prefilled = max_tokens - budget
        self.num_prefilled += self._num_last_prefilled
        tokens = [self.lanes[piece.lane].pending.prompt_ids[piece.start : piece.stop] for piece in pieces]
        positions = [np.arange(piece.start, piece.stop) for piece in pieces]
        return Prefill(self._prompts, pieces), np.concatenate(tokens), np.concatenate(positions)

    def decode(self) -> Inputs:
        """Each row's last token: how they attend, the tokens, and their positions."""
        used = self.num_made - 1
        self._responses.reserve(used + 1, used=used, limit=self.max_new_tokens)
        part = Decode(self._prompts, self._responses, seats=self._seats, prompt_mask=self._prompt_mask, used=used)
        return part, self._columns["tokens"][:, used], self._prompt_tokens[self.lane_of_row] + used

    def append(self, drawn: dict[str, np.ndarray], version: int, *, stopping: Stopping) -> list[Pending]:
        """One token more for each row; returns the groups that lack no sample then."""
        for name, values in {**drawn, "versions": np.full(self.num_rows, version)}.items():
            self._columns[name][:, self.num_made] = values
        self.num_made += 1
        ended = self.ended(stopping)
        leaves = ended | (self.num_made == self.max_new_tokens)
        if not leaves.any():
            return []
        touched = [self._finish(row, stopping, stopped=bool(ended[row])) for row in np.flatnonzero(leaves).tolist()]
        self._keep(~leaves)
        return [pending for pending in {id(p): p for p in touched}.values() if pending.is_finished]

    def ended(self, stopping: Stopping) -> Bool[np.ndarray, "rows"]:
        """Which responses end with their last token."""
        return stopping.ended(self._columns["tokens"][:, : self.num_made])

    def _finish(self, row: int, stopping: Stopping, *, stopped: bool) -> Pending:
        own = {name: column[row, : self.num_made].copy() for name, column in self._columns.items() if column.ndim == 2}
        pending = self.lanes[self.lane_of_row[row]].pending
        sample = Sample(
            index=int(self._columns["index"][row]),
            token_ids=own["tokens"],
            logprobs=own["logprobs"],
            sampled_logprobs=own["sampled_logprobs"],
            entropies=own["entropies"],
            versions=own["versions"],
            text=stopping.text(own["tokens"]),
            finish_reason="stop" if stopped else "length",
        )
        pending.samples.append(sample)
        return pending

    def _keep(self, stays: Bool[np.ndarray, "rows"]) -> None:
        gaps = Gaps.of(stays)
        self._columns = {name: gaps.close(column) for name, column in self._columns.items()}
        self._responses.drop(gaps, used=self.num_made - 1)
        if self.num_rows:
            self._keep_lanes()
            self._arrange()

    def _keep_lanes(self) -> None:
        stays = np.bincount(self.lane_of_row, minlength=len(self.lanes)) > 0
        gaps = Gaps.of(stays)
        numbers = np.arange(len(self.lanes))
        numbers[gaps.movers] = gaps.holes
        self._columns["lane"] = numbers[self.lane_of_row]
        self._prompts.drop(gaps, used=self._prompts.capacity)
        for hole, mover in zip(gaps.holes, gaps.movers, strict=True):
            self.lanes[hole] = self.lanes[mover]
        del self.lanes[gaps.num_left :]
