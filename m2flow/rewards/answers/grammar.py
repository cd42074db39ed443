# SPDX-License-Identifier: Apache-2.0
"""From tokens to one expression, by recursive descent. Nothing is worked out here but the value of literals."""

from collections.abc import Callable, Sequence
from fractions import Fraction

from m2flow.rewards.answers.lexing import Token
from m2flow.rewards.answers.spelling import FUNCTIONS, GREEK
from m2flow.rewards.answers.tree import Constant, Malformed, Node, Number, Op, Symbol, Unfamiliar

MAX_DEPTH = 250
"""Deepest nesting of an expression, scripts and fractions included."""
_END = Token("end", "")
_ONE_HUNDREDTH = Number(Fraction(1, 100))
_CONSTANTS = {r"\pi": Constant("pi"), r"\infty": Constant("infinity")}
_LETTERS = {"e": Constant("e"), "i": Constant("i")}
_NAMED = {f"\\{name}" for name in FUNCTIONS - {"sqrt", "max", "min", "gcd", "lcm"}}
_SEVERAL = {r"\max", r"\min", r"\gcd", r"\lcm"}
_DECORATED = {
    r"\vec",
    r"\hat",
    r"\bar",
    r"\overline",
    r"\tilde",
    r"\overrightarrow",
    r"\widehat",
    r"\dot",
    r"\mathbb",
    r"\mathcal",
}
_PAIRS = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_ROUNDING = {r"\lfloor": "floor", r"\lceil": "ceil"}
_MAX_EXPONENT = 4000
"""Literals such as 1e5000 stay powers."""


def product(*factors: Node) -> Node:
    """Their product, flat."""
    flat = [g for f in factors for g in (f.args if isinstance(f, Op) and f.name == "product" else (f,))]
    return flat[0] if len(flat) == 1 else Op("product", tuple(flat))


def negate(node: Node) -> Node:
    """Minus ``node``."""
    if isinstance(node, Number):
        return Number(-node.value)
    return product(Number(Fraction(-1)), node)


def digits(text: str) -> int:
    """The integer that a run of digits spells, of any length (Python's own limit is 4300 digits)."""
    value = 0
    for start in range(0, len(text), 4000):
        part = text[start : start + 4000]
        value = value * 10 ** len(part) + int(part)
    return value


def literal(text: str) -> Node:
    """The number that ``12``, ``1.50``, ``.5`` or ``6.02e23`` spells, exactly."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    decimals = decimals.rstrip("0")
    value = Fraction(digits((whole + decimals) or "0"), 10 ** len(decimals))
    if not exponent:
        return Number(value)
    if len(exponent) > 12:
        raise Malformed("an exponent of more than twelve digits")
    power = int(exponent)
    if abs(power) <= _MAX_EXPONENT:
        return Number(value * Fraction(10) ** power)
    return product(Number(value), Op("power", (Number(Fraction(10)), Number(Fraction(power)))))


class Grammar:
    """Reads one expression from the front of ``tokens``; ``rest`` is what it left."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = list(tokens)
        self.at = 0
        self.depth = 0
        self.bars = 0

    @property
    def rest(self) -> list[Token]:
        """Tokens that were not read."""
        return self.tokens[self.at :]

    def peek(self, ahead: int = 0) -> Token:
        """A token to come."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else _END

    def take(self) -> Token:
        """The next token, now read."""
        token = self.peek()
        if token is _END:
            raise Malformed("the expression breaks off")
        self.at += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Read the next token if it is one of ``texts``."""
        found = self.peek().kind != "text" and self.peek().text in texts
        self.at += found
        return found

    def expect(self, text: str) -> None:
        """Read ``text``."""
        if not self.accept(text):
            raise Malformed(f"expected {text}")

    def sum(self) -> Node:
        """``a + b - c``."""
        terms = [self.signed(self.product)]
        while self.peek().text in ("+", "-") and self.peek().kind == "sign":
            terms.append(self.signed(self.product))
        return terms[0] if len(terms) == 1 else Op("sum", tuple(terms))

    def signed(self, inner: Callable[[], Node]) -> Node:
        """Any number of signs, then ``inner``."""
        minus = False
        while self.peek().kind == "sign" and self.peek().text in ("+", "-"):
            minus ^= self.take().text == "-"
        node = inner()
        return negate(node) if minus else node

    def product(self) -> Node:
        """``a b``, ``a * b``, ``a / b``, from left to right."""
        factors = [self.factor()]
        while (factor := self._next_factor()) is not None:
            factors.append(factor)
        return product(*factors)

    def _next_factor(self) -> Node | None:
        if self.accept(r"\cdot"):
            return self.signed(self.factor)
        if self.accept("/"):
            return Op("inverse", (self.signed(self.factor),))
        return self.factor() if self._starts_factor() else None

    def _starts_factor(self) -> bool:
        token = self.peek()
        if token.kind == "number":
            # "3 4" is no product; nor is "x2", which may be meant as a power, an index or a product.
            before = self.tokens[self.at - 1].kind
            return before != "number" and (before != "letter" or token.spaced)
        if token.kind == "letter" or (token.kind == "sign" and token.text in ("(", "[", "{")):
            return True
        if token.text == "|":
            return self.bars == 0 and token.kind == "sign"
        return token.kind == "command" and (token.text in _ATOMS or token.text[1:] in GREEK)

    def factor(self) -> Node:
        """An atom with what follows it: powers, ``!``, ``%``, degrees."""
        node = self.atom()
        while self.peek().kind == "sign" and self.peek().text in _POSTFIX:
            node = _POSTFIX[self.take().text](self, node)
        return node

    def _factorial(self, base: Node) -> Node:
        return Op("factorial", (base,))

    def _percent(self, base: Node) -> Node:
        return product(base, _ONE_HUNDREDTH)

    def _power(self, base: Node) -> Node:
        if self._accept_degree():
            return Op("degree", (base,))
        return Op("power", (base, self._exponent()))

    def _accept_degree(self) -> bool:
        if self.accept(r"\circ"):
            return True
        braced = self.peek().text == "{" and self.peek(1).text == r"\circ" and self.peek(2).text == "}"
        self.at += 3 * braced
        return braced

    def _exponent(self) -> Node:
        """The exponent, with the powers in it: ``a^b^c`` is ``a^(b^c)``."""
        exponents = [self.signed(self.argument)]
        while self.accept("^"):
            exponents.append(self.signed(self.argument))
        if len(exponents) > MAX_DEPTH:
            raise Malformed("a tower of powers too high")
        node = exponents.pop()
        while exponents:
            node = Op("power", (exponents.pop(), node))
        return node

    def atom(self) -> Node:
        """A number, name, group or function."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Malformed("nested too deep")
        node = self._atom(self.take())
        self.depth -= 1
        return node

    def _atom(self, token: Token) -> Node:
        if token.kind == "number":
            return self._number(token)
        if token.kind == "letter":
            return self._symbol(token.text)
        if token.kind == "sign" and token.text in _PAIRS:
            return self._group(token.text)
        if token.text == "|" and token.kind == "sign":
            return self._bars()
        if token.kind == "command":
            return self._command(token.text)
        raise Malformed(f"'{token.text}' where a value should stand")

    def _command(self, text: str) -> Node:
        if text in _ATOMS:
            return _ATOMS[text](self, text)
        if text[1:] in GREEK:
            return self._symbol(text)
        raise Unfamiliar(text)

    def _group(self, opening: str) -> Node:
        node = self.sum()
        for name, text in (("over", r"\over"), ("binomial", r"\choose")):
            if opening == "{" and self.accept(text):
                bottom = self.sum()
                node = product(node, Op("inverse", (bottom,))) if name == "over" else Op(name, (node, bottom))
        self.expect(_PAIRS[opening])
        return Op(_ROUNDING[opening], (node,)) if opening in _ROUNDING else node

    def _bars(self) -> Node:
        self.bars += 1
        node = self.sum()
        self.expect("|")
        self.bars -= 1
        return Op("abs", (node,))

    def _symbol(self, name: str) -> Node:
        if name in _LETTERS and self.peek().text != "_":
            return _LETTERS[name]
        if self.accept("_"):
            name += f"_{self._script_text()}"
        while self.accept("'"):
            name += "'"
        return Symbol(name)

    def _script_text(self) -> str:
        if not self.accept("{"):
            return self.take().text
        parts = []
        while not self.accept("}"):
            parts.append(self.take().text)
        return "".join(parts)

    def _number(self, token: Token) -> Node:
        if self.peek().text in (r"\overline", r"\bar", r"\dot") and "." in token.text:
            return self._repeating(token.text)
        if self.peek().text == "_":
            return self._in_base(token.text)
        node = literal(token.text)
        fraction = self._mixed() if token.text.isdigit() else None
        return node if fraction is None else Op("sum", (node, fraction))

    def _mixed(self) -> Node | None:
        """The proper fraction right behind a whole number: ``1\\frac{1}{2}``, ``3 1/2``."""
        start = self.at
        if self.accept(r"\frac"):
            top, bottom = self.argument(short=True), self.argument(short=True)
            if _is_proper(top, bottom) and self.peek().text != "^":
                return product(top, Op("inverse", (bottom,)))
        elif self.peek().spaced and [self.peek(i).kind for i in (0, 2)] == ["number"] * 2 and self.peek(1).text == "/":
            top, bottom = literal(self.peek().text), literal(self.peek(2).text)
            if _is_proper(top, bottom):
                self.at += 3
                return product(top, Op("inverse", (bottom,)))
        self.at = start
        return None

    def _repeating(self, start: str) -> Node:
        self.take()
        block = self._script_text()
        if not block.isdigit():
            raise Malformed("a repeating decimal without digits")
        whole, _, decimals = start.partition(".")
        shift = 10 ** len(decimals)
        period = Fraction(digits(block), 10 ** len(block) - 1)
        return Number((digits(whole + decimals) + period) / shift)

    def _in_base(self, text: str) -> Node:
        self.take()
        base = self._script_text()
        if not (base.isdigit() and len(base) < 3 and 2 <= int(base) <= 36 and text.isdigit() and len(text) < 1000):
            raise Malformed("a number with a subscript that is no base")
        if any(int(digit) >= int(base) for digit in text):
            raise Malformed("a digit that its base does not have")
        return Number(Fraction(int(text, int(base))))

    def argument(self, *, short: bool = False) -> Node:
        """A braced group or a single token; ``short``: only one digit of a number, as in ``\\frac12``."""
        token = self.take()
        if token.text == "{" and token.kind == "sign":
            return self._group("{")
        if token.kind == "number" and short and len(token.text) > 1:
            self.tokens[self.at - 1] = token._replace(text=token.text[1:], spaced=False)
            self.at -= 1
            if not token.text[0].isdigit():
                raise Malformed("a fraction without a digit")
            return literal(token.text[0])
        if token.kind == "number":
            # "x^2 \frac{1}{2}" and "\log_5 \frac{1}{25}" hold no mixed number.
            return literal(token.text)
        self.at -= 1
        return self.atom()

    def _frac(self, text: str) -> Node:
        top, bottom = self.argument(short=True), self.argument(short=True)
        return product(top, Op("inverse", (bottom,)))

    def _sqrt(self, text: str) -> Node:
        index: Node = Number(Fraction(2))
        if self.accept("["):
            index = self._group("[")
        return Op("root", (self.argument(), index))

    def _binom(self, text: str) -> Node:
        return Op("binomial", (self.argument(short=True), self.argument(short=True)))

    def _function(self, text: str) -> Node:
        name = text[1:]
        base = self.argument() if self.accept("_") else None
        if base is not None and name != "log":
            raise Malformed(f"{text} with a subscript")
        exponent = self._exponent() if self.accept("^") else None
        args = (self._operand(),) if base is None else (self._operand(), base)
        inverse = exponent == Number(Fraction(-1)) and f"arc{name}" in FUNCTIONS
        node = Op(f"arc{name}" if inverse else name, args)
        return node if exponent is None or inverse else Op("power", (node, exponent))

    def _operand(self) -> Node:
        """What a function applies to: a group, or factors up to the next sign or function."""
        if self.peek().text in ("(", "[", "{", "|") and self.peek().kind == "sign":
            node = self.factor() if self.peek().text in ("{", "|") else self.atom()
            return self._power(node) if self._degree_follows() and self.accept("^") else node
        factors = [self.signed(self.factor)]
        while self._starts_factor() and self.peek().text not in _NAMED and self.peek().text not in ("(", "["):
            factors.append(self.factor())
        while self.peek().text == "/" and self.peek(1).kind in ("number", "letter"):
            self.take()
            factors.append(Op("inverse", (self.factor(),)))
        return product(*factors)

    def _degree_follows(self) -> bool:
        return self.peek().text == "^" and r"\circ" in (self.peek(1).text, self.peek(2).text)

    def _several(self, text: str) -> Node:
        opening = self.take().text
        if opening not in ("(", r"\{"):
            raise Malformed(f"{text} without a list in brackets")
        args = [self.sum()]
        while self.accept(","):
            args.append(self.sum())
        self.expect({"(": ")"}.get(opening, r"\}"))
        return Op(text[1:], tuple(args))

    def _decorated(self, text: str) -> Node:
        return Symbol(f"{text}{{{self._script_text()}}}")

    def _constant(self, text: str) -> Node:
        return _CONSTANTS[text]

    def _rounding(self, text: str) -> Node:
        return self._group(text)


def _is_proper(top: Node, bottom: Node) -> bool:
    if not (isinstance(top, Number) and isinstance(bottom, Number)):
        return False
    whole = top.value.denominator == bottom.value.denominator == 1
    return whole and 0 < top.value < bottom.value


_POSTFIX: dict[str, Callable[[Grammar, Node], Node]] = {
    "!": Grammar._factorial,
    "%": Grammar._percent,
    "^": Grammar._power,
}
_ATOMS: dict[str, Callable[[Grammar, str], Node]] = {
    **dict.fromkeys(_NAMED, Grammar._function),
    **dict.fromkeys(_SEVERAL, Grammar._several),
    **dict.fromkeys(_DECORATED, Grammar._decorated),
    **dict.fromkeys(_CONSTANTS, Grammar._constant),
    **dict.fromkeys(_ROUNDING, Grammar._rounding),
    r"\frac": Grammar._frac,
    r"\sqrt": Grammar._sqrt,
    r"\binom": Grammar._binom,
}
