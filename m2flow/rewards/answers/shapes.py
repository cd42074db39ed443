# SPDX-License-Identifier: Apache-2.0
"""From an answer's text to its shape: a value, set, interval, matrix, equation, several candidates, or words."""

import re
from collections.abc import Sequence

from m2flow.rewards.answers import units
from m2flow.rewards.answers.equality import equal, symbols
from m2flow.rewards.answers.grammar import Grammar, negate, product
from m2flow.rewards.answers.lexing import CLOSE, OPEN, Reading, Token, tokenize
from m2flow.rewards.answers.spelling import GREEK
from m2flow.rewards.answers.tree import (
    Collection,
    Constant,
    Grid,
    Malformed,
    Many,
    Named,
    Node,
    Op,
    Ordered,
    Relation,
    Shape,
    Symbol,
    Unfamiliar,
    Unit,
    Value,
    Words,
)

_RELATIONS = {"=": "=", r"\ne": "!=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">="}
_FLIPPED = {">": "<", ">=": "<="}
_MATRICES = frozenset(["pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix", "array"])
_INFINITY = Constant("infinity")
_ALL_REALS = frozenset({r"\mathbb{R}", r"\mathbbR", "all real numbers", "all reals"})
_POINTS = re.compile(r"(?:\\(?:angle|triangle)|m\\angle)?[A-Z]{2,4}|(?:m?\\angle)[A-Z]")
_EMPTY = frozenset({r"\emptyset", r"\{\}", "{}", "empty set", "the empty set"})
_APPLIED = re.compile(r"(?:[A-Za-z](?:'+|\^\{-1\})?\([A-Za-z](?:,[A-Za-z])*\)|[fghP]\(\d+\))")
_TEMPERATURES = ((("celsius", 1),), (("fahrenheit", 1),))
_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_MAX_TERMS = 64
"""Longest answer, in tokens, for each of two readings of a plus-minus sign."""


def read(text: str, reading: Reading) -> Shape:
    """The shape of an answer. What is balanced but no mathematics becomes ``Words``.

    Raises:
        Malformed: nothing, or brackets that do not balance.
        Unfamiliar: notation that is not read here.
    """
    tokens = tokenize(text, reading)
    while tokens and tokens[-1].text in (".", ",", ";", r"\\") and tokens[-1].kind == "sign":
        tokens.pop()
    if not tokens:
        raise Malformed("nothing")
    return _several(tokens)


def joined(tokens: Sequence[Token]) -> str:
    """The tokens as one text, by which identical answers are found."""
    spelled = "".join(f"{t.text.lower()} " if t.kind == "text" else t.text for t in tokens)
    return re.sub(r"  +", " ", spelled).strip()


def words(text: str) -> str:
    """Text without LaTeX's text commands, outer punctuation and leading article; in lower case if it is all letters."""
    for _ in range(3):
        text = _TEXT_COMMAND.sub(r" \1 ", text)
    bare = re.sub(r"[\s~$]+|\\[,;:! ]", " ", text).strip(" .,;:\"'`*")
    if re.sub(r"[-\s!?()']", "", bare).isalpha():
        bare = re.sub(r"(?<=\w\w)[!?]+$", "", bare.lower())
        bare = re.sub(r"^(?:the|an?|option|choice|answer) (?=\S)", "", bare)
    return re.sub(r"^(?:\(\s*([^()]*?)\s*\)|([a-z])\))$", lambda m: m[1] or m[2] or "", bare)


def split(tokens: Sequence[Token], *separators: str) -> list[list[Token]]:
    """The runs of tokens between separators that stand in no bracket."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in OPEN) - (token.text in CLOSE)
        if depth == 0 and token.kind != "text" and token.text in separators:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _several(tokens: list[Token]) -> Shape:
    parts = split(tokens, ",", ";")
    if len(parts) == 1:
        return _one(tokens)
    if any(not part for part in parts):
        raise Malformed("an empty item in a list")
    return Many(joined(tokens), tuple(map(_one, parts)))


def _one(tokens: list[Token]) -> Shape:
    is_set = tokens[0].text == r"\{" and _closes_last(tokens)
    if not is_set and any(token.text in (r"\pm", r"\mp") for token in tokens):
        return _plus_minus(tokens)
    if len(parts := split(tokens, r"\cup")) > 1:
        return _union(joined(tokens), tuple(map(_one, _filled(parts))))
    if len(parts := split(tokens, r"\in")) == 2:
        return _membership(_filled(parts), tokens)
    if len(split(tokens, *_RELATIONS)) > 1:
        return _relation(tokens)
    return _object(tokens)


def _union(text: str, parts: tuple[Shape, ...]) -> Shape:
    sets = [part.items for part in parts if isinstance(part, Collection) and part.kind == "set"]
    if len(sets) == len(parts):
        return Collection(text, "set", tuple(item for items in sets for item in items))
    return Collection(text, "union", parts)


def _filled(parts: list[list[Token]]) -> list[list[Token]]:
    if any(not part for part in parts):
        raise Malformed("something is missing beside an operator")
    return parts


def _plus_minus(tokens: list[Token]) -> Shape:
    if len(tokens) > _MAX_TERMS:
        raise Malformed("a long expression with a plus-minus sign")
    signs = {r"\pm": ("+", "-"), r"\mp": ("-", "+")}
    both = [[Token("sign", signs[t.text][i]) if t.text in signs else t for t in tokens] for i in (0, 1)]
    return Many(joined(tokens), tuple(map(_one, both)))


def _membership(parts: list[list[Token]], tokens: list[Token]) -> Shape:
    name = _variable(parts[0])
    if name is None:
        raise Unfamiliar("membership of something else than a variable")
    return Named(joined(tokens), name, _one(parts[1]))


def _variable(tokens: Sequence[Token]) -> str | None:
    """The name where ``tokens`` are a variable, or a function of some such as ``f(x)``, ``f'(x)`` or ``f(2)``."""
    if len(tokens) > 3 and _APPLIED.fullmatch(text := joined(tokens)):
        return text
    try:
        grammar = Grammar(tokens)
        node = grammar.sum()
    except (Malformed, Unfamiliar):
        return None
    if grammar.rest:
        return None
    if len(tokens) == 1 and tokens[0].kind == "letter":
        return tokens[0].text
    return node.name if isinstance(node, Symbol) else None


def _relation(tokens: list[Token]) -> Shape:
    parts = _filled(split(tokens, *_RELATIONS))
    depth, ops = 0, []
    for token in tokens:
        depth += (token.text in OPEN) - (token.text in CLOSE)
        if depth == 0 and token.kind != "text" and token.text in _RELATIONS:
            ops.append(_RELATIONS[token.text])
    if set(ops) == {"="}:
        return _equation(parts, tokens)
    return _inequality(parts, ops, text=joined(tokens))


def _equation(parts: list[list[Token]], tokens: list[Token]) -> Shape:
    text = joined(tokens)
    # Letters bound to a function's name or a word ("Area = 5") are labels, a lone variable is one too.
    for label, value in ((parts[0], parts[1:]), (parts[-1], parts[-2::-1])):
        name = _variable(label) or _label(label)
        if name is not None and (len(value) == 1 or _all_equal(value)):
            return Named(text, name, _one(value[-1]), is_word=all(token.kind == "text" for token in label))
    if len(parts) > 2:
        raise Malformed("a chain of equations whose members differ")
    left, right = map(_whole, parts)
    if not _has_symbols(left) and not _has_symbols(right):
        return _object(parts[1]) if _all_equal(parts) else Words(text)
    return Relation(text, "=", left, right)


def _label(tokens: Sequence[Token]) -> str | None:
    """A word, points such as ``AB``, or a tuple of variables, which name what stands on the other side."""
    inner = tokens[1:-1]
    is_tuple = len(inner) > 1 and tokens[0].text == "(" and tokens[-1].text == ")"
    if (
        all(token.kind == "text" for token in tokens)
        or _POINTS.fullmatch(joined(tokens))
        or (is_tuple and all(t.kind == "letter" or t.text == "," or t.text[1:] in GREEK for t in inner))
    ):
        return joined(tokens)
    return None


def _all_equal(parts: Sequence[list[Token]]) -> bool:
    nodes = [_whole(part) for part in parts]
    return all(equal(nodes[0], node) for node in nodes[1:])


def _has_symbols(node: Node) -> bool:
    return bool(symbols(node))


def _whole(tokens: Sequence[Token]) -> Node:
    grammar = Grammar(tokens)
    node = grammar.sum()
    if grammar.rest and _unit(grammar.rest) is None:
        raise Malformed("something follows the expression")
    return node


def _inequality(parts: list[list[Token]], ops: list[str], *, text: str) -> Shape:
    if ops[0] in (">", ">="):
        parts, ops = parts[::-1], [_FLIPPED.get(op, op) for op in ops[::-1]]
    if len(parts) == 3 and set(ops) <= {"<", "<="} and (name := _variable(parts[1])):
        return _range(text, name, bounds=(_whole(parts[0]), ops[0], ops[1], _whole(parts[2])))
    if len(parts) != 2 or ops[0] not in ("<", "<=", "!="):
        raise Unfamiliar("a chain of relations")
    left, right = map(_whole, parts)
    if ops[0] == "!=" or (_has_symbols(left) and _has_symbols(right)):
        return Relation(text, ops[0], left, right)
    if (name := _variable(parts[0])) and not _has_symbols(right):
        return _range(text, name, bounds=(negate(_INFINITY), "<", ops[0], right))
    if (name := _variable(parts[1])) and not _has_symbols(left):
        return _range(text, name, bounds=(left, ops[0], "<", _INFINITY))
    return Relation(text, ops[0], left, right)


def _range(text: str, name: str, *, bounds: tuple[Node, str, str, Node]) -> Ordered:
    low, low_op, high_op, high = bounds
    brackets = ("[" if low_op == "<=" else "(") + ("]" if high_op == "<=" else ")")
    return Ordered(text, brackets, (Value("", low), Value("", high)), variable=name)


def _object(tokens: list[Token]) -> Shape:
    tokens = _without_parentheses(tokens)
    text = joined(tokens)
    first = tokens[0].text
    if text in _EMPTY:
        return Collection(text, "set", ())
    if text in _ALL_REALS:
        return Ordered(text, "()", (Value("", negate(_INFINITY)), Value("", _INFINITY)))
    if _closes_last(tokens) and tokens[0].kind == "sign":
        inner = tokens[1:-1]
        if first == r"\{" and len(parts := split(inner, "|", ":")) == 2 and (built := _set_builder(*parts)):
            return built
        if first == r"\{":
            return Collection(text, "set", _elements(split(inner, ",", ";")))
        if first in ("(", "[") and len(parts := split(inner, ",", ";")) > 1:
            return Ordered(text, first + tokens[-1].text, tuple(map(_one, _filled(parts))))
        if first == "{" and len(parts := split(inner, ",", ";")) > 1:
            return Collection(text, "set", tuple(map(_one, _filled(parts))))
        if first == r"\begin":
            return _grid(inner, text)
    matrix = next((i for i, token in enumerate(tokens) if token.text == r"\begin"), 0)
    if matrix and _closes_last(tokens[matrix:]) and isinstance(grid := _object(tokens[matrix:]), Grid):
        return _scaled(_whole(tokens[:matrix]), grid, text=text)
    if len(parts := split(tokens, ":")) > 1:
        return Ordered(text, "::", tuple(map(_object, _filled(parts))))
    return _value(tokens, text)


def _elements(parts: list[list[Token]]) -> tuple[Shape, ...]:
    """What a set holds; ``\\pm 1`` is two elements."""
    read = [_one(part) for part in _filled(parts)]
    return tuple(element for shape in read for element in (shape.items if isinstance(shape, Many) else (shape,)))


def _set_builder(element: list[Token], condition: list[Token]) -> Shape | None:
    """``{x | x > 2}`` as the interval or relation that its condition is; ``None`` where bars mean something else."""
    if not (element and condition and _variable(split(element, r"\in")[0])):
        return None
    shape = _one(condition)
    return shape if isinstance(shape, Ordered | Relation | Named) else None


def _without_parentheses(tokens: list[Token]) -> list[Token]:
    """Strip brackets that enclose everything and separate nothing, as ``((5))`` and those around a matrix."""
    while len(tokens) > 2 and tokens[0].text in ("(", "[", "{") and _closes_last(tokens):
        inner = tokens[1:-1]
        if len(split(inner, ",", ";", r"\over", r"\choose")) > 1:
            break
        tokens = inner
    return tokens


def _closes_last(tokens: Sequence[Token]) -> bool:
    """Whether the bracket that ``tokens`` begin with is closed by the last of them."""
    if tokens[0].text not in OPEN:
        return False
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.text in OPEN) - (token.text in CLOSE)
        if depth == 0:
            tail = [t.text for t in tokens[i + 1 :]]
            named_end = token.text == r"\end" and len(tail) >= 3 and tail[0] == "{" and tail.index("}") == len(tail) - 1
            return named_end or not tail
    return False


def _grid(tokens: Sequence[Token], text: str) -> Shape:
    name, rest = _environment(tokens)
    end = max((i for i, token in enumerate(rest) if token.text == r"\end"), default=None)
    if end is None:
        raise Malformed("an environment that does not end")
    if name not in _MATRICES:
        raise Unfamiliar(name)
    body = rest[:end]
    if name == "array" and body and body[0].text == "{":
        body = body[next(i for i, token in enumerate(body) if token.text == "}") + 1 :]
    rows = [row for row in split(body, r"\\") if row]
    cells = tuple(tuple(map(_one, _filled(split(row, "&")))) for row in rows)
    if not cells or len({len(row) for row in cells}) != 1:
        raise Malformed("a matrix with rows of different lengths")
    return Grid(text, cells)


def _scaled(factor: Node, grid: Grid, *, text: str) -> Shape:
    """A matrix of values, times a number."""
    rows = []
    for row in grid.rows:
        values = [cell for cell in row if isinstance(cell, Value)]
        if len(values) < len(row):
            raise Malformed("a multiple of a matrix that holds more than values")
        rows.append(tuple(Value("", product(factor, cell.node), cell.unit) for cell in values))
    return Grid(text, tuple(rows))


def _environment(tokens: Sequence[Token]) -> tuple[str, list[Token]]:
    if not tokens or tokens[0].text != "{":
        raise Malformed("an environment without a name")
    end = next((i for i, token in enumerate(tokens) if token.text == "}"), None)
    if end is None:
        raise Malformed("an environment without a name")
    return "".join(token.text for token in tokens[1:end]), list(tokens[end + 1 :])


def _value(tokens: list[Token], text: str) -> Shape:
    if len(split(tokens, r"\over", r"\choose")) > 1:
        tokens = [Token("sign", "{"), *tokens, Token("sign", "}")]
    prefix, body = _currency(tokens)
    if not body or (body[0].kind == "text" and not prefix):
        return _as_words(tokens)
    try:
        grammar = Grammar(body)
        node = grammar.sum()
    except Malformed:
        if any(token.kind == "text" for token in tokens):
            return _as_words(tokens)
        raise
    if grammar.rest and grammar.rest[0].kind == "command":
        raise Unfamiliar(grammar.rest[0].text)
    unit = prefix if not grammar.rest else _unit([*_sign_tokens(tokens, prefix), *grammar.rest])
    if grammar.rest and unit is None:
        return _as_words(tokens)
    if isinstance(node, Op) and node.name == "degree" and (unit is None or unit.dimensions[:1] in _TEMPERATURES):
        node, unit = node.args[0], unit or units.read_unit("°")
    return Value(text, node, unit)


def _sign_tokens(tokens: Sequence[Token], prefix: Unit | None) -> list[Token]:
    return [token for token in tokens[:2] if token.text in units.SYMBOLS][:1] if prefix else []


def _as_words(tokens: Sequence[Token]) -> Words:
    if not any(token.kind in ("text", "letter") for token in tokens):
        raise Malformed("no mathematics, and no words either")
    return Words(joined(tokens))


def _currency(tokens: list[Token]) -> tuple[Unit | None, list[Token]]:
    """The currency sign in front, behind a minus at most, and the tokens without it."""
    for i, token in enumerate(tokens[:2]):
        if token.text in units.SYMBOLS and (i == 0 or tokens[0].text in ("-", "+")):
            return units.read_unit(token.text), tokens[:i] + tokens[i + 1 :]
    return None, tokens


def _unit(tokens: Sequence[Token]) -> Unit | None:
    """The unit that the tokens behind a value spell; ``None`` where they spell none."""
    if tokens[0].kind not in ("text", "letter"):
        return None
    plain = [token.text.rstrip(".") for token in tokens if token.text not in ("{", "}")]
    return units.read_unit(" ".join("·" if text == r"\cdot" else text for text in plain))
