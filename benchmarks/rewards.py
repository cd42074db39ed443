# SPDX-License-Identifier: Apache-2.0
"""Verdicts per second of ``math_answer`` beside calls of Math-Verify in the same process.

python benchmarks/rewards.py [--number 20000] [--file tests/conformance/math/math_answers.json]

Three loads: plain arithmetic answers, formulas that have to be read, and hostile ones among plain (one in 20).
Math-Verify has its own limit of 5 s a call; ``math_answer`` runs with its defaults, its processes started before the
clock is. Wall-clock time, and how many verdicts of the file of judged cases each gets right.

Recorded on two cores (load 1.5, math-verify 0.9.0, December 2026): plain 324,000 verdicts a second against 1,083,
formulas 4,080 against 57, hostile 970 against 6; of the 199 judged cases 199 right in 2.1 s against 190 in 38 s.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import math_verify

from m2flow.rewards.base import Response
from m2flow.rewards.math_answer import MathAnswer

Pair = tuple[str, str]

FORMULAS = [
    (r"\frac{K}{2}", r"\dfrac{2K}{4}"),
    (r"K\sqrt{8}", r"2\sqrt{2}\cdot K"),
    ("x^2+Kx+1", "1+Kx+x^2"),
    ("[0,K)", "[0, K.0)"),
    (r"\{1,2,K\}", r"\{K,2,1\}"),
    (r"K\text{ cm}", "K cm"),
    (r"\frac{\pi}{K}", r"\frac{\pi}{K+1}"),
    ("(1,K)", "(K,1)"),
]
HOSTILE = ["9^{9^{9^{K}}}", "(" * 300 + "K" + ")" * 300, "{K" * 1500, "9**9**K", "1," * 3000 + "K", "-" * 2000 + "K"]
"""K stands for a number that differs from answer to answer."""


def plain(number: int) -> list[Pair]:
    """Sums, half of them wrong."""
    rng = random.Random(0)
    sums = [rng.randrange(10_000) for _ in range(number)]
    return [(str(value), str(value + rng.randrange(2))) for value in sums]


def formulas(number: int) -> list[Pair]:
    """Formulas that differ from one another, as those of a data set do."""
    pairs = [FORMULAS[i % len(FORMULAS)] for i in range(number)]
    return [(gold.replace("K", str(i + 3)), answer.replace("K", str(i + 3))) for i, (gold, answer) in enumerate(pairs)]


def hostile(number: int) -> list[Pair]:
    """Plain answers, every twentieth replaced by a hostile one."""
    pairs = plain(number)
    for i in range(0, number, 20):
        pairs[i] = ("5", HOSTILE[i // 20 % len(HOSTILE)].replace("K", str(i + 6)))
    return pairs


def ours(pairs: Sequence[Pair]) -> list[bool]:
    """``math_answer``, in batches of 256 as an iteration has them."""
    found = []
    for start in range(0, len(pairs), 256):
        batch = pairs[start : start + 256]
        verdicts = REWARD.score([Response(completion=answer, columns={"answer": gold}) for gold, answer in batch])
        found += [verdict.value == 1.0 for verdict in verdicts]
    return found


def theirs(pairs: Sequence[Pair]) -> list[bool]:
    """Math-Verify, each text in a box."""
    return [_verify(gold, answer) for gold, answer in pairs]


def _verify(gold: str, answer: str) -> bool:
    boxed = [text if "\\boxed" in text else rf"\boxed{{{text}}}" for text in (gold, answer)]
    return math_verify.verify(math_verify.parse(boxed[0]), math_verify.parse(boxed[1]))


def rate(judge: Callable[[Sequence[Pair]], list[bool]], pairs: Sequence[Pair]) -> float:
    """Verdicts per second."""
    start = time.perf_counter()
    judge(pairs)
    return len(pairs) / (time.perf_counter() - start)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=20_000, help="answers of each load for math_answer")
    parser.add_argument("--file", type=Path, default=Path("tests/conformance/math/math_answers.json"))
    options = parser.parse_args()
    ours(formulas(4))
    theirs(formulas(4))
    print(f"{'verdicts per second':24} {'math_answer':>12} {'Math-Verify':>12} {'ratio':>8}")
    for name, load, share in (
        ("plain arithmetic", plain, 20),
        ("formulas", formulas, 20),
        ("hostile, 1 in 20", hostile, 200),
    ):
        a, b = rate(ours, load(options.number)), rate(theirs, load(options.number // share))
        print(f"{name:24} {a:12,.0f} {b:12,.0f} {a / b:8.1f}")
    cases = json.loads(options.file.read_text(encoding="utf-8"))["cases"]
    pairs, wanted = [(c["gold"], c["answer"]) for c in cases], [c["verdict"] for c in cases]
    for name, judge in (("math_answer", ours), ("Math-Verify", theirs)):
        start = time.perf_counter()
        right = sum(a == b for a, b in zip(judge(pairs), wanted, strict=True))
        print(f"{name}: {right} of {len(cases)} judged cases right, in {time.perf_counter() - start:.1f} s")


REWARD = MathAnswer(MathAnswer.Config())

if __name__ == "__main__":
    main()
