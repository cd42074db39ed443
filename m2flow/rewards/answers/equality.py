# SPDX-License-Identifier: Apache-2.0
"""Whether two expressions are equal: exactly where both are rational, else to many digits and at several points."""

from fractions import Fraction
from typing import Any

from m2flow.rewards.answers import numeric
from m2flow.rewards.answers.grammar import negate, product
from m2flow.rewards.answers.rational import PRIMES, NotRational, Residues, Undefined, evaluate, exact
from m2flow.rewards.answers.tree import Constant, Node, Number, Op, Symbol, TooLarge

_NUM_POINTS = 3


def symbols(node: Node) -> set[str]:
    """Names of the variables in ``node``."""
    found: set[str] = set()
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, Symbol):
            found.add(item.name)
        elif isinstance(item, Op):
            stack.extend(item.args)
    return found


def _has_infinity(node: Node) -> bool:
    stack = [node]
    while stack:
        item = stack.pop()
        if item == Constant("infinity"):
            return True
        stack.extend(item.args if isinstance(item, Op) else ())
    return False


def equal(a: Node, b: Node) -> bool:
    """Whether ``a`` and ``b`` have the same value, for all values of their variables for which both have one.

    Raises:
        TooLarge: that would take numbers too large to work out.
    """
    if a == b:
        return True
    if _has_infinity(a) or _has_infinity(b):
        # There is no arithmetic with infinity here; what is written alike was found equal above.
        return False
    try:
        return _equal_rational(a, b)
    except NotRational:
        pass
    except Undefined:
        return False
    return _equal_numbers(a, b) if not (symbols(a) or symbols(b)) else _equal_functions(a, b)


def _equal_rational(a: Node, b: Node) -> bool:
    if not (symbols(a) or symbols(b)):
        try:
            return exact(a) == exact(b)
        except TooLarge:
            pass
    return _agree([_residues((a, b), prime=prime, point=point) for prime in PRIMES for point in range(_NUM_POINTS)])


def _agree(found: list[tuple[int, ...] | None]) -> bool:
    defined = [pair for pair in found if pair is not None]
    return bool(defined) and all(a == b for a, b in defined)


def _residues(nodes: tuple[Node, ...], *, prime: int, point: int) -> tuple[int, ...] | None:
    field = Residues(prime, point)
    try:
        return tuple(evaluate(node, field) for node in nodes)
    except Undefined:
        return None


def _equal_numbers(a: Node, b: Node) -> bool:
    try:
        (x, y), tolerance, _ = numeric.values((a, b), 0)
    except (Undefined, NotRational):
        return False
    return bool(x == y or abs(x - y) <= tolerance)


def _equal_functions(a: Node, b: Node) -> bool:
    """At all sample points where both are real; where there are too few of those, at all where both are defined."""
    real: list[bool] = []
    every: list[bool] = []
    for point in range(len(numeric.POINTS)):
        try:
            (x, y), tolerance, is_complex = numeric.values((a, b), point)
        except (Undefined, TooLarge):
            continue
        except NotRational:
            return False
        (every if is_complex else real).append(bool(x == y or abs(x - y) <= tolerance))
    found = real if len(real) >= 2 else real + every
    return len(found) >= 2 and all(found)


def proportional(a: Node, b: Node) -> bool:
    """Whether ``a`` is ``b`` times a constant that is not 0: then ``a = 0`` and ``b = 0`` are one equation."""
    if not (symbols(a) and symbols(a) == symbols(b)):
        return False
    try:
        return _proportional_rational(a, b)
    except NotRational:
        return _proportional_numeric(a, b)


def _proportional_rational(a: Node, b: Node) -> bool:
    for prime in PRIMES:
        field = Residues(prime, 0)
        found = [_residues((a, b), prime=prime, point=point) for point in range(_NUM_POINTS)]
        pairs = [pair for pair in found if pair is not None and all(pair)]
        ratios = {x * field.power(y, -1) % prime for x, y in pairs}
        if len(pairs) < 2 or len(ratios) != 1:
            return False
    return True


def _proportional_numeric(a: Node, b: Node) -> bool:
    """By the first point's ratio at all the others."""
    ratios: list[tuple[Any, Any]] = []
    for point in range(len(numeric.POINTS)):
        try:
            (x, y), tolerance, is_complex = numeric.values((a, b), point)
        except (Undefined, TooLarge, NotRational):
            continue
        if not is_complex and abs(x) > tolerance and abs(y) > tolerance:
            ratios.append((x / y, tolerance))
    if len(ratios) < 2:
        return False
    first = ratios[0][0]
    return all(abs(ratio - first) <= (1 + abs(first)) * tolerance * 10**6 for ratio, tolerance in ratios)


def same_sign(a: Node, b: Node) -> bool:
    """Whether ``a`` and ``b``, which are proportional, point the same way."""
    for point in range(len(numeric.POINTS)):
        signs = numeric.real_sign(a, point), numeric.real_sign(b, point)
        if None not in signs and 0 not in signs:
            return signs[0] == signs[1]
    return False


def minus(a: Node, b: Node) -> Node:
    """``a - b``."""
    return Op("sum", (a, negate(b)))


def times(node: Node, factor: Fraction) -> Node:
    """``node`` times a number."""
    return node if factor == 1 else product(Number(factor), node)
