# SPDX-License-Identifier: Apache-2.0
"""Values of expressions built with + - * / and whole powers: as fractions of bounded size, or modulo a prime.

Two polynomials or huge numbers that agree modulo a large prime at random points are the same, but for a chance of
about (degree / prime). So ``10^20`` differs from ``10^20 + 1``, and ``(x+1)^200`` from ``(x+1)^200 + 1``, without being
expanded.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from m2flow.rewards.answers.tree import Node, Number, Op, Symbol, TooLarge

PRIMES = (2**127 - 1, 2**521 - 1)
MAX_BITS = 100_000
"""Longest numerator or denominator that is worked out."""
_MAX_FACTORIAL = 2_000


class NotRational(Exception):
    """The expression holds something else than rational operations."""


class Undefined(Exception):
    """A division by zero, or a function outside its domain."""


class Field(ABC):
    """The arithmetic that an expression is evaluated in."""

    @abstractmethod
    def number(self, value: Fraction) -> Any:
        """A literal."""

    @abstractmethod
    def add(self, a: Any, b: Any) -> Any:
        """``a + b``."""

    @abstractmethod
    def multiply(self, a: Any, b: Any) -> Any:
        """``a b``."""

    @abstractmethod
    def power(self, base: Any, exponent: int) -> Any:
        """``base`` to a whole exponent, negative ones included."""

    @abstractmethod
    def symbol(self, name: str) -> Any:
        """The value of a variable."""


class Fractions(Field):
    """Fractions of at most ``MAX_BITS``; variables have no value."""

    def number(self, value: Fraction) -> Fraction:
        """The literal itself."""
        return value

    def add(self, a: Fraction, b: Fraction) -> Fraction:
        """Their sum, bounded."""
        return _bounded(a + b)

    def multiply(self, a: Fraction, b: Fraction) -> Fraction:
        """Their product, bounded."""
        return _bounded(a * b)

    def power(self, base: Fraction, exponent: int) -> Fraction:
        """``base`` to a whole exponent, bounded."""
        if base == 0 and exponent <= 0:
            raise Undefined
        if abs(base) not in (0, 1) and _bits(base) * abs(exponent) > MAX_BITS:
            raise TooLarge
        # The exponent's size no longer matters for 0, 1 and -1.
        return base ** (exponent if abs(base) not in (0, 1) else exponent % 2 or 2)

    def symbol(self, name: str) -> Fraction:
        """A variable has no value."""
        raise NotRational


class Residues(Field):
    """Integers modulo a prime; variables have values of their own at each ``point``."""

    def __init__(self, prime: int, point: int) -> None:
        self.prime, self.point = prime, point

    def number(self, value: Fraction) -> int:
        """The literal, as a residue."""
        return value.numerator * self.power(value.denominator, -1) % self.prime

    def add(self, a: int, b: int) -> int:
        """Their sum."""
        return (a + b) % self.prime

    def multiply(self, a: int, b: int) -> int:
        """Their product."""
        return a * b % self.prime

    def power(self, base: int, exponent: int) -> int:
        """``base`` to a whole exponent."""
        if base % self.prime == 0 and exponent <= 0:
            raise Undefined
        return pow(base, exponent, self.prime)

    def symbol(self, name: str) -> int:
        """A random value, the same at every call."""
        return 2 + _draw(name, self.point) % (self.prime - 2)


@lru_cache(maxsize=1024)
def _draw(name: str, point: int) -> int:
    return random.Random(f"{name} at {point}").getrandbits(600)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise TooLarge
    return value


def exact(node: Node) -> Fraction:
    """The value of an expression without variables.

    Raises:
        NotRational, Undefined, TooLarge: it has none that can be worked out here.
    """
    return evaluate(node, Fractions())


def evaluate(node: Node, field: Field) -> Any:
    """The value of ``node`` in ``field``; what only fractions can do (roots, factorials) is done in fractions."""
    if isinstance(node, Number):
        return field.number(node.value)
    if isinstance(node, Symbol):
        return field.symbol(node.name)
    if not isinstance(node, Op):
        raise NotRational
    if node.name in _FOLDS:
        return _FOLDS[node.name](node, field)
    if node.name in _EXACT:
        return field.number(_bounded(_EXACT[node.name](*map(exact, node.args))))
    raise NotRational


def _sum(node: Op, field: Field) -> Any:
    total = evaluate(node.args[0], field)
    for term in node.args[1:]:
        total = field.add(total, evaluate(term, field))
    return total


def _product(node: Op, field: Field) -> Any:
    total = evaluate(node.args[0], field)
    for factor in node.args[1:]:
        total = field.multiply(total, evaluate(factor, field))
    return total


def _inverse(node: Op, field: Field) -> Any:
    return field.power(evaluate(node.args[0], field), -1)


def _power(node: Op, field: Field) -> Any:
    exponent = exact(node.args[1])
    if exponent.denominator == 1:
        return field.power(evaluate(node.args[0], field), exponent.numerator)
    root = _root(exact(node.args[0]), Fraction(exponent.denominator))
    return field.power(field.number(root), exponent.numerator)


_FOLDS: Mapping[str, Callable[[Op, Field], Any]] = {
    "sum": _sum,
    "product": _product,
    "inverse": _inverse,
    "power": _power,
}


def _root(value: Fraction, index: Fraction) -> Fraction:
    """The root where it is rational; odd roots of negative numbers are real."""
    if index.denominator != 1 or not 1 <= index <= 64:
        raise NotRational
    n = int(index)
    if value < 0:
        if n % 2 == 0:
            raise NotRational
        return -_root(-value, index)
    return Fraction(_integer_root(value.numerator, n), _integer_root(value.denominator, n))


def _integer_root(value: int, n: int) -> int:
    low, high = 0, 1 << (value.bit_length() // n + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**n < value else (low, middle)
    if low**n != value:
        raise NotRational
    return low


def _natural(value: Fraction, limit: int) -> int:
    if value.denominator != 1 or value < 0:
        raise NotRational
    if value > limit:
        raise TooLarge
    return int(value)


def _factorial(value: Fraction) -> Fraction:
    return Fraction(math.factorial(_natural(value, _MAX_FACTORIAL)))


def _binomial(top: Fraction, bottom: Fraction) -> Fraction:
    return Fraction(math.comb(_natural(top, _MAX_FACTORIAL), _natural(bottom, _MAX_FACTORIAL)))


def _gcd(*values: Fraction) -> Fraction:
    return Fraction(math.gcd(*(_natural(v, 10**1000) for v in values)))


def _lcm(*values: Fraction) -> Fraction:
    return Fraction(math.lcm(*(_natural(v, 10**1000) for v in values)))


_EXACT: Mapping[str, Callable[..., Any]] = {
    "root": _root,
    "factorial": _factorial,
    "binomial": _binomial,
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "gcd": _gcd,
    "lcm": _lcm,
    "max": max,
    "min": min,
}
