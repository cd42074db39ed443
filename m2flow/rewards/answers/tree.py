# SPDX-License-Identifier: Apache-2.0
"""What answers are read into: expressions, and the shapes made of them."""

from dataclasses import dataclass
from fractions import Fraction


class Malformed(Exception):
    """The text is no mathematics: unbalanced, incomplete, too deep or too long."""


class Unfamiliar(Exception):
    """The text is balanced, but uses notation that is not read here (an integral, a limit)."""


class TooLarge(Exception):
    """A value that is not worked out because it would not fit: such answers are compared as text."""


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number as written."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """``pi``, ``e``, ``i`` or ``infinity``."""

    name: str


@dataclass(frozen=True, slots=True)
class Op:
    """An operation on expressions: sum, product, inverse, power, root, or a function by name."""

    name: str
    args: tuple["Node", ...]


Node = Number | Symbol | Constant | Op


@dataclass(frozen=True, slots=True)
class Unit:
    """``multiplier`` counts (million), ``scale`` converts to base units, ``dimensions`` are their exponents."""

    multiplier: Fraction
    scale: Fraction
    dimensions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One expression, with a unit or without; ``text`` is its tokens joined."""

    text: str
    node: Node
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is no expression, in lower case."""

    text: str


@dataclass(frozen=True, slots=True)
class Many:
    """Several candidate values: ``3 or 4``, ``1, 2``, ``\\pm 5``."""

    text: str
    items: tuple["Shape", ...]


@dataclass(frozen=True, slots=True)
class Collection:
    """A set in braces, or a union of sets: order does not count, nor does repetition."""

    text: str
    kind: str
    items: tuple["Shape", ...]


@dataclass(frozen=True, slots=True)
class Ordered:
    """A tuple, an interval or a ratio: ``brackets`` are its two ends."""

    text: str
    brackets: str
    items: tuple["Shape", ...]
    variable: str | None = None
    """What lies in it, where the answer is an inequality."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix, by rows."""

    text: str
    rows: tuple[tuple["Shape", ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """``left op right`` with op one of ``=``, ``!=``, ``<`` and ``<=``."""

    text: str
    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Named:
    """``name = value``: stands for the value, unless the other side names another variable."""

    text: str
    name: str
    value: "Shape"
    is_word: bool = False
    """``Area = 5``: the name is a description, which others may put in other words."""


Shape = Value | Words | Many | Collection | Ordered | Grid | Relation | Named
