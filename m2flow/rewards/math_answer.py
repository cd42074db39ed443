# SPDX-License-Identifier: Apache-2.0
"""1 where a completion's final answer denotes the same mathematical object as the gold answer, else 0."""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from m2flow.config import Config
from m2flow.errors import RewardError
from m2flow.rewards.answers.finals import Extract, extract_final, gold_final
from m2flow.rewards.answers.pool import Pool
from m2flow.rewards.base import Response, RewardFunction, Verdict

MAX_CHARS = 10_000
"""Final answers longer than this are wrong, unless they are the gold answer to the letter."""
_SIMPLE = re.compile(r"([-+]?)(\d{1,40})(?:\.(\d{1,40})|/(\d{1,40}))?\.?", re.ASCII)
_RIGHT, _WRONG = Verdict(1.0), Verdict(0.0)
_EVENTS = {"timeout": "timeouts", "memory": "memory_limits", "crash": "crashes"}


class MathAnswer(RewardFunction):
    """Exact equality of values, however they are written: 1/2, 0.5, 50\\% and \\frac{2}{4} are one number.

    Plain numbers are compared here and now, anything else in processes with a time and a memory limit. An answer that
    exceeds a limit, or crashes its process, costs its own sample: it counts as wrong or as not applicable
    (``on_failure``), and in the metrics ``reward/math_answer_timeouts``, ``_memory_limits`` and ``_crashes``.
    """

    EVENTS = (*_EVENTS.values(), "too_long")

    class Config(Config):
        """Options of ``math_answer``."""

        answer: str = "answer"
        """Column of the gold answer: text or a number. A worked solution serves too: its last box or #### line."""
        extract: Extract = "boxed"
        """Where a completion's final answer stands. boxed: in its last \\boxed, else the completion is the answer;
        boxed_only: nowhere but in a \\boxed; last_number: the last box, else the last number; first_line: the first
        line; marker: the last box, else what follows the last '####' or 'answer is'."""
        timeout_s: float = Field(default=2.0, gt=0, le=600)
        """Wall-clock time for one verdict, in seconds."""
        memory_bytes: int = Field(default=2**30, ge=2**29)
        """Address space of one process. Not enforced on macOS, which has no such limit."""
        num_workers: int = Field(default=2, ge=1, le=256)
        """Processes. They start when an answer first needs one."""
        on_failure: Literal["wrong", "none"] = "wrong"
        """An answer that hits a limit gets reward 0 (wrong), or no reward at all (none)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._pool = Pool(num_workers=config.num_workers, timeout_s=config.timeout_s, memory_bytes=config.memory_bytes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The gold answer's column."""
        return (self.config.answer,)

    def score(self, responses: Sequence[Response]) -> list[Verdict]:
        """One verdict for each response. A gold answer of ``None`` makes the reward not applicable.

        Raises:
            RewardError: a gold answer is empty, or neither text nor a number; or the processes do not start.
        """
        verdicts: dict[int, Verdict] = {}
        hard: dict[tuple[str, str], list[int]] = {}
        for i, response in enumerate(responses):
            gold = self._gold(response)
            answer = extract_final(response.completion, self.config.extract)
            verdict = Verdict(None) if gold is None else _quick_verdict(gold, answer)
            if verdict is not None:
                verdicts[i] = verdict
            else:
                hard.setdefault((gold or "", answer or ""), []).append(i)
        judged = self._pool.judge(list(hard))
        for found, members in zip(judged, hard.values(), strict=True):
            verdicts.update(dict.fromkeys(members, self._verdict(found)))
        return [verdicts[i] for i in range(len(responses))]

    def _gold(self, response: Response) -> str | None:
        value = response.columns[self.config.answer]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise RewardError(
                f"{response.where}: column '{self.config.answer}' holds {value!r} ({type(value).__name__}), "
                "expected the gold answer as text or a number"
            )
        final = gold_final(value if isinstance(value, str) else str(value))
        if final is None:
            raise RewardError(
                f"{response.where}: column '{self.config.answer}' holds {value!r}, which has no answer in it; "
                "mend the data set, or set it to null where there is no gold answer"
            )
        return final

    def _verdict(self, found: str) -> Verdict:
        if found in _EVENTS:
            return Verdict(0.0 if self.config.on_failure == "wrong" else None, _EVENTS[found])
        return _RIGHT if found == "right" else _WRONG

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def _quick_verdict(gold: str, answer: str | None) -> Verdict | None:
    """The verdict where it is plain to see; ``None`` where the answer has to be read."""
    if answer is None:
        return _WRONG
    if answer == gold:
        return _RIGHT if any(c.isalnum() for c in gold) else _WRONG
    if len(answer) > MAX_CHARS and len(answer := answer.strip()) > MAX_CHARS:
        return Verdict(0.0, "too_long")
    a, b = _simple(gold), _simple(answer)
    if a is None or b is None:
        return None
    return _RIGHT if a == b else _WRONG


@lru_cache(maxsize=65_536)
def _simple(text: str) -> Fraction | int | None:
    """The value of an integer, decimal or fraction of at most 40 digits a part."""
    match = _SIMPLE.fullmatch(text.strip()) if len(text) < 200 else None
    if match is None:
        return None
    sign, whole, decimals, bottom = match.groups()
    if not decimals and not bottom:
        return int(sign + whole)
    if bottom:
        return Fraction(int(sign + whole), int(bottom)) if int(bottom) else None
    return Fraction(int(sign + whole + decimals), 10 ** len(decimals))
