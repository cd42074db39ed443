# SPDX-License-Identifier: Apache-2.0
"""Whether a gold answer and a given one denote the same object, by shape."""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from m2flow.rewards.answers import equality, shapes
from m2flow.rewards.answers.grammar import negate
from m2flow.rewards.answers.lexing import MAX_CHARS, Reading, tokenize
from m2flow.rewards.answers.tree import (
    Collection,
    Constant,
    Grid,
    Malformed,
    Many,
    Named,
    Number,
    Op,
    Ordered,
    Relation,
    Shape,
    Symbol,
    TooLarge,
    Unfamiliar,
    Unit,
    Value,
    Words,
)
from m2flow.rewards.answers.units import LETTERS

MAX_ITEMS = 200
"""Largest set or list whose items are matched with another's."""
_READINGS = (
    (Reading(), re.compile("")),
    (Reading(thousands=False), re.compile(r"\d[,，]\d")),
    (Reading(unit_letters=True), re.compile(f"[{''.join(sorted(LETTERS))}]")),
    (Reading(exponents=True), re.compile(r"\d[eｅ][-+−]\d")),
)
"""Ways to read an answer, and what must stand in it for the way to matter."""
_MINUS_INFINITY = negate(Constant("infinity"))
_DEGREE = (("degree", 1),)
_POUNDS = {(("pound", 1),), (("sterling", 1),)}
"""One word for a weight and a currency."""


def same_answer(gold: str, answer: str) -> bool:
    """Whether ``answer`` denotes what ``gold`` does. Neither is ever run as code.

    The answer is read the usual way first, then with commas between three digits as separators, then with single
    letters behind a number as units, then with ``7e-4`` as one number.

    Raises:
        Unfamiliar: both are balanced, but at least one uses notation that is not read here.
    """
    if not any(c.isalnum() or c in "∅∞{" for c in answer):
        return False
    if len(answer) > MAX_CHARS:
        return same_text(gold, answer)
    unfamiliar: Unfamiliar | None = None
    for reading, mark in _READINGS:
        if not (mark.search(gold) or mark.search(answer)):
            continue
        try:
            a, b = shapes.read(gold, reading), shapes.read(answer, reading)
        except Malformed:
            break
        except Unfamiliar as error:
            unfamiliar = error
            break
        if reading.unit_letters and not (_has_unit(a) and _has_unit(b)):
            continue
        if same(a, b):
            return True
    if same_text(gold, answer):
        return True
    if unfamiliar:
        raise unfamiliar
    return False


def same_spelling(gold: str, answer: str) -> bool:
    """Whether both are the same tokens, which is all that can be said of notation that is not read here."""
    try:
        a, b = (shapes.joined(tokenize(text, Reading())) for text in (gold, answer))
    except (Malformed, Unfamiliar):
        return False
    return a == b


def same_text(gold: str, answer: str) -> bool:
    """Whether both are the same words, whatever their case, punctuation and LaTeX text commands."""
    words = shapes.words(answer)
    return any(c.isalnum() for c in words) and words == shapes.words(gold)


def _has_unit(shape: Shape) -> bool:
    return isinstance(shape, Value) and shape.unit is not None and bool(shape.unit.dimensions)


def same(a: Shape, b: Shape) -> bool:
    """Whether two shapes denote one object; a number too large to work out equals only what is written alike."""
    if a.text and a.text == b.text and type(a) is type(b):
        return True
    if isinstance(a, Named) or isinstance(b, Named):
        return _same_named(a, b)
    compare = _COMPARE.get((type(a), type(b)))
    if compare is not None:
        return compare(a, b)
    compare = _COMPARE.get((type(b), type(a)))
    return compare is not None and compare(b, a)


def _same_named(a: Shape, b: Shape) -> bool:
    if isinstance(a, Named) and isinstance(b, Named):
        if a.name == b.name or (a.is_word and b.is_word):
            return same(a.value, b.value)
        left, right = _as_relation(a), _as_relation(b)
        return left is not None and right is not None and _same_relations(left, right)
    named, other = (a, b) if isinstance(a, Named) else (b, a)
    assert isinstance(named, Named)
    if isinstance(other, Relation):
        relation = _as_relation(named)
        return relation is not None and _same_relations(relation, other)
    if isinstance(other, Ordered) and other.variable not in (None, named.name):
        return False
    return same(named.value, other)


def _as_relation(named: Named) -> Relation | None:
    if not isinstance(named.value, Value):
        return None
    return Relation(named.text, "=", Symbol(named.name), named.value.node)


def _same_values(a: Value, b: Value) -> bool:
    try:
        return any(equality.equal(x, y) for x, y in _pairs(a, b))
    except TooLarge:
        return False


def _pairs(a: Value, b: Value) -> list[tuple]:
    """The two expressions in a common unit. A value without a unit may stand for one with a unit."""
    x, y = (equality.times(v.node, v.unit.multiplier if v.unit else Fraction(1)) for v in (a, b))
    ua, ub = _dimensions(a.unit), _dimensions(b.unit)
    if ua and ub:
        if ua != ub and {ua, ub} != _POUNDS:
            return []
        assert a.unit and b.unit
        return [(equality.times(x, a.unit.scale), equality.times(y, b.unit.scale))]
    if ua == _DEGREE:
        return [(x, y), (Op("degree", (x,)), y)]
    if ub == _DEGREE:
        return [(x, y), (x, Op("degree", (y,)))]
    return [(x, y)]


def _dimensions(unit: Unit | None) -> tuple[tuple[str, int], ...]:
    return unit.dimensions if unit else ()


def _same_items(a: Sequence[Shape], b: Sequence[Shape]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def _same_unordered(a: Sequence[Shape], b: Sequence[Shape]) -> bool:
    if len(a) != len(b) or len(a) > MAX_ITEMS:
        return False
    left = list(b)
    for item in a:
        found = next((i for i, other in enumerate(left) if same(item, other)), None)
        if found is None:
            return False
        del left[found]
    return True


def _distinct(items: Sequence[Shape]) -> list[Shape]:
    kept: list[Shape] = []
    for item in items:
        if not any(same(item, other) for other in kept):
            kept.append(item)
    return kept


def _same_collections(a: Collection, b: Collection) -> bool:
    if a.kind != b.kind or max(len(a.items), len(b.items)) > MAX_ITEMS:
        return False
    return _same_unordered(_distinct(a.items), _distinct(b.items))


def _same_ordered(a: Ordered, b: Ordered) -> bool:
    if a.variable and b.variable and a.variable != b.variable:
        return False
    # With two items brackets say which ends belong to an interval; a longer row is a tuple, however it is bracketed.
    alike = a.brackets == b.brackets or (len(a.items) > 2 and {a.brackets, b.brackets} == {"()", "[]"})
    return alike and _same_items(a.items, b.items)


def _same_many(a: Many, b: Many) -> bool:
    return _same_unordered(a.items, b.items)


def _same_grids(a: Grid, b: Grid) -> bool:
    return len(a.rows) == len(b.rows) and all(map(_same_items, a.rows, b.rows))


def _same_relations(a: Relation, b: Relation) -> bool:
    if a.op != b.op:
        return False
    x, y = equality.minus(a.left, a.right), equality.minus(b.left, b.right)
    try:
        found = equality.proportional(x, y)
        return found and (a.op in ("=", "!=") or equality.same_sign(x, y))
    except TooLarge:
        return False


def _same_words(a: Words, b: Words) -> bool:
    return shapes.words(a.text) == shapes.words(b.text)


def _same_letters(a: Words, b: Value) -> bool:
    """``\\text{Bob}`` and ``Bob``, which reads like a product of three letters."""
    return b.text.isalpha() and len(b.text) <= 3 and shapes.words(a.text) == shapes.words(b.text)


def _grid_is_rows(a: Grid, b: Ordered) -> bool:
    """A matrix written ``[[1, 2], [3, 4]]``."""
    rows = [item for item in b.items if isinstance(item, Ordered) and item.brackets == "[]"]
    same_form = b.brackets == "[]" and len(rows) == len(b.items) == len(a.rows)
    return same_form and all(_same_items(x, y.items) for x, y in zip(a.rows, rows, strict=True))


def _ratio_of(a: Ordered, b: Value) -> bool:
    """``3:4`` is the fraction 3/4 where a fraction is what the other side has."""
    if a.brackets != "::" or len(a.items) != 2 or not all(isinstance(item, Value) for item in a.items):
        return False
    top, bottom = (item.node for item in a.items if isinstance(item, Value))
    if isinstance(b.node, Number) and b.node.value.denominator == 1:
        return False
    return _same_values(Value("", equality.product(top, Op("inverse", (bottom,)))), b)


def _half_line_is_relation(a: Ordered, b: Relation) -> bool:
    """``x > 3`` and ``2x > 6``."""
    if a.variable is None:
        return False
    low, high = (item.node for item in a.items if isinstance(item, Value))
    x = Symbol(a.variable)
    if high == Constant("infinity"):
        return _same_relations(Relation("", "<=" if a.brackets[0] == "[" else "<", low, x), b)
    return low == _MINUS_INFINITY and _same_relations(Relation("", "<=" if a.brackets[1] == "]" else "<", x, high), b)


def _many_is_tuple(a: Many, b: Ordered) -> bool:
    return b.brackets == "()" and b.variable is None and _same_items(a.items, b.items)


def _many_is_set(a: Many, b: Collection) -> bool:
    if b.kind == "union":
        return _same_unordered(a.items, b.items)
    return len(a.items) <= MAX_ITEMS and _same_unordered(_distinct(a.items), _distinct(b.items))


_COMPARE: dict[tuple[type, type], Callable[..., bool]] = {
    (Value, Value): _same_values,
    (Words, Words): _same_words,
    (Words, Value): _same_letters,
    (Grid, Ordered): _grid_is_rows,
    (Many, Many): _same_many,
    (Collection, Collection): _same_collections,
    (Ordered, Ordered): _same_ordered,
    (Grid, Grid): _same_grids,
    (Relation, Relation): _same_relations,
    (Ordered, Value): _ratio_of,
    (Ordered, Relation): _half_line_is_relation,
    (Many, Ordered): _many_is_tuple,
    (Many, Collection): _many_is_set,
}
