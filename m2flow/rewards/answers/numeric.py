# SPDX-License-Identifier: Apache-2.0
"""Values of expressions to many digits: roots, pi, e, i, logarithms, trigonometry, and variables at sample points.

The number of digits follows from the literals and from the largest and smallest value on the way, so that neither a
long rounded decimal passes for an irrational number nor a cancellation for an equality.
"""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import mpmath
from mpmath import mp

from m2flow.rewards.answers.rational import NotRational, Undefined, exact
from m2flow.rewards.answers.tree import Constant, Node, Number, Symbol, TooLarge

BASE_DIGITS = 60
MAX_DIGITS = 3_000
_TOLERANCE_DIGITS = 30
_MAX_LOG = 1e6
"""Largest natural logarithm of a value that is worked out."""
_MAX_FACTORIAL = 200
POINTS = (*[(0.1, 3.0)] * 3, *[(4.0, 30.0)] * 2, *[(-3.0, 3.0)] * 16, (-30.0, -4.0))
"""Ranges that variables are drawn from, one a point: enough of them for two or three variables to have all signs."""


class Evaluator:
    """Evaluates at one point, and notes how large and small things became and whether anything left the reals."""

    def __init__(self, point: int) -> None:
        self.point = point
        self.max_log10 = 0
        self.min_log10 = 0
        self.is_complex = False

    def value(self, node: Node) -> Any:
        """An mpmath number.

        Raises:
            Undefined, TooLarge, NotRational: there is none, or none that is worked out.
        """
        if isinstance(node, Number):
            return self.note(mp.mpf(node.value.numerator) / node.value.denominator)
        if isinstance(node, Symbol):
            low, high = POINTS[self.point]
            return mp.mpf(random.Random(f"{node.name} at {self.point}").uniform(low, high))
        if isinstance(node, Constant):
            return _CONSTANTS[node.name]()
        if node.name == "sum":
            return self.note(mp.fsum(map(self.value, node.args)), small=False)
        if node.name not in _FUNCTIONS:
            raise NotRational(node.name)
        if node.name == "root" and (real := self._real_root(node.args)) is not None:
            return self.note(real)
        return self.note(_FUNCTIONS[node.name](*map(self.value, node.args)))

    def _real_root(self, args: tuple[Node, ...]) -> Any:
        """An odd root of a negative number, which is real here."""
        index = self.value(args[1])
        radicand = self.value(args[0])
        if isinstance(radicand, mp.mpf) and radicand < 0 and index == int(mp.re(index)) and int(index) % 2 == 1:
            return -mp.root(-radicand, int(index))
        return None

    def note(self, value: Any, *, small: bool = True) -> Any:
        """Keep track of ``value``; sums may come near zero by cancellation, which says nothing about ``small``."""
        if mp.isnan(value):
            raise Undefined
        if isinstance(value, mp.mpc) and value.imag != 0:
            self.is_complex = True
        if value == 0 or mp.isinf(value):
            return value
        log10 = int(mp.mag(value) * 0.30103)
        self.max_log10 = max(self.max_log10, log10)
        self.min_log10 = min(self.min_log10, log10) if small else self.min_log10
        return value


def _inverse(x: Any) -> Any:
    if x == 0:
        raise Undefined
    return 1 / x


def _power(base: Any, exponent: Any) -> Any:
    if base == 0:
        if mp.re(exponent) <= 0:
            raise Undefined
        return mp.mpf(0)
    _require_small(exponent * mp.log(base))
    return mp.power(base, exponent)


def _require_small(log: Any) -> None:
    if abs(log) > _MAX_LOG:
        raise TooLarge


def _exp(x: Any) -> Any:
    _require_small(x)
    return mp.exp(x)


def _log(x: Any, base: Any = None) -> Any:
    if x == 0 or base in (0, 1):
        raise Undefined
    return mp.log(x) if base is None else mp.log(x) / mp.log(base)


def _factorial(x: Any) -> Any:
    if mp.im(x) == 0 and mp.re(x) < 0 and mp.isint(x):
        raise Undefined
    if abs(x) > _MAX_FACTORIAL:
        raise TooLarge
    return mp.factorial(x)


def _binomial(n: Any, k: Any) -> Any:
    if abs(n) > 1e4 or abs(k) > 1e4:
        raise TooLarge
    return mp.binomial(n, k)


def _periodic(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def checked(x: Any) -> Any:
        if abs(x) > 1e15:
            raise TooLarge
        return function(x)

    return checked


def _reciprocal(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: _inverse(_periodic(function)(x))


def _root(x: Any, index: Any) -> Any:
    return mp.sqrt(x) if index == 2 else _power(x, _inverse(index)) if x != 0 else mp.mpf(0)


_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "pi": lambda: +mp.pi,
    "e": lambda: +mp.e,
    "i": lambda: mp.mpc(0, 1),
    "infinity": lambda: mp.inf,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "product": lambda *factors: mp.fprod(factors),
    "inverse": _inverse,
    "power": _power,
    "root": _root,
    "degree": lambda x: x * mp.pi / 180,
    "abs": abs,
    "factorial": _factorial,
    "binomial": _binomial,
    "floor": lambda x: mp.floor(x),
    "ceil": lambda x: mp.ceil(x),
    "max": lambda *values: max(values, key=mp.re),
    "min": lambda *values: min(values, key=mp.re),
    "exp": _exp,
    "ln": _log,
    "log": lambda x, base=10: _log(x, base),
    "lg": lambda x: _log(x, 10),
    "sin": _periodic(mpmath.sin),
    "cos": _periodic(mpmath.cos),
    "tan": _periodic(mpmath.tan),
    "sec": _reciprocal(mpmath.cos),
    "csc": _reciprocal(mpmath.sin),
    "cot": _reciprocal(mpmath.tan),
    "sinh": lambda x: _power(mp.e, x) / 2 - _power(mp.e, -x) / 2,
    "cosh": lambda x: _power(mp.e, x) / 2 + _power(mp.e, -x) / 2,
    "tanh": _periodic(mpmath.tanh),
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
}


def values(nodes: tuple[Node, ...], point: int) -> tuple[tuple[Any, ...], Any, bool]:
    """The values of ``nodes`` at ``point``, the difference that counts as none, and whether anything was complex.

    Raises:
        Undefined, TooLarge, NotRational: one of them has no value there.
    """
    digits = BASE_DIGITS + sum(map(literal_digits, nodes))
    _require_digits(digits)
    with mp.workdps(digits):
        first = Evaluator(point)
        for node in nodes:
            first.value(node)
    digits += first.max_log10 - first.min_log10
    _require_digits(digits)
    with mp.workdps(digits):
        second = Evaluator(point)
        found = tuple(second.value(node) for node in nodes)
        tolerance = mp.mpf(10) ** (first.min_log10 - _TOLERANCE_DIGITS - sum(map(literal_digits, nodes)))
        return found, tolerance, second.is_complex


def _require_digits(digits: int) -> None:
    if digits > MAX_DIGITS:
        raise TooLarge


def literal_digits(node: Node) -> int:
    """How many digits the literals of ``node`` have, the first few of each left out."""
    total, stack = 0, [node]
    while stack:
        item = stack.pop()
        if isinstance(item, Number):
            bits = item.value.numerator.bit_length() + item.value.denominator.bit_length()
            total += max(0, math.ceil(bits * 0.30103) - 8)
        elif not isinstance(item, Symbol | Constant):
            stack.extend(item.args)
    return total


def real_sign(node: Node, point: int) -> int | None:
    """-1, 0 or 1; ``None`` where the value is undefined or not real."""
    try:
        (value,), tolerance, is_complex = values((node,), point)
    except (Undefined, NotRational):
        return None
    if is_complex:
        return None
    return 0 if abs(value) <= tolerance else int(mp.sign(value))


def is_exact(node: Node) -> bool:
    """Whether ``node`` is a plain rational number."""
    try:
        exact(node)
    except (NotRational, Undefined, TooLarge):
        return False
    return True
