# SPDX-License-Identifier: Apache-2.0
"""From an answer's characters to tokens, with the many spellings of one thing made alike. Linear in the text."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from m2flow.rewards.answers import units
from m2flow.rewards.answers.spelling import (
    APPLIED,
    CONNECTIVES,
    FUNCTIONS,
    GREEK,
    MATH_FONTS,
    PRODUCT_LETTERS,
    SAME_COMMAND,
    SHORT_WORDS,
    TEXT_COMMANDS,
    spell,
)
from m2flow.rewards.answers.tree import Malformed, Unfamiliar

MAX_CHARS = 10_000
"""Longer answers are compared as text only."""
MAX_DEPTH = 200
"""Deepest nesting of brackets that is read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read what can be read in two ways."""

    thousands: bool = True
    """``1,234`` is one number, not two."""
    unit_letters: bool = False
    """``5 m`` is a length, not a product."""
    exponents: bool = False
    """``7e-4`` is 0.0007, not seven times Euler's number less four."""


class Token(NamedTuple):
    """``kind`` is number, letter, command, text or sign; ``spaced``: white space stands before it."""

    kind: str
    text: str
    spaced: bool = False


_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<grouped>\d+(?:,\d+)+(?:\.\d+)?)"
    r"|(?P<hex>0[xX][0-9a-fA-F]+)"
    r"|(?P<scientific>\d+e[-+]\d(?!\d))"
    r"|(?P<number>\d+\.\d+[eE][-+]?\d+|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE]\d+|[eE][-+]\d\d+|E[-+]\d)"
    r"|\d+\.\d+|\d+\.(?=\s*\\(?:overline|bar|dot)\b)|\d+|\.\d+)"
    r"|(?P<command>\\[A-Za-z]+\*?)"
    r"|(?P<escaped>\\.)"
    r"|(?P<word>[^\W\d_]+)"
    r"|(?P<sign>\*\*|<=|>=|!=|==|.)",
    re.DOTALL,
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
OPEN = frozenset({"(", "[", "{", r"\{", r"\begin"})
CLOSE = frozenset({")", "]", "}", r"\}", r"\end"})


def tokenize(text: str, reading: Reading) -> list[Token]:
    """The tokens of an answer.

    Raises:
        Malformed: too long or too deep, brackets that do not balance, or a hexadecimal number.
        Unfamiliar: a double bar.
    """
    if len(text) > MAX_CHARS or len(text := spell(text)) > MAX_CHARS:
        raise Malformed("too long")
    tokens = _Lexer(text, reading).run()
    _require_balance(tokens)
    return tokens


def _require_balance(tokens: list[Token]) -> None:
    depth = 0
    for token in tokens:
        depth += (token.text in OPEN) - (token.text in CLOSE)
        if not 0 <= depth <= MAX_DEPTH:
            raise Malformed("brackets do not balance, or nest too deep")
    if depth:
        raise Malformed("brackets do not balance")


class _Lexer:
    def __init__(self, text: str, reading: Reading, *, nesting: int = 0) -> None:
        self.text, self.reading, self.nesting = text, reading, nesting
        self.at, self.depth, self.spaced, self.in_unit = 0, 0, False, False
        self.tokens: list[Token] = []
        self.closing: dict[int, int] | None = None

    def run(self) -> list[Token]:
        while self.at < len(self.text):
            match = _TOKEN.match(self.text, self.at)
            if match is None:
                raise Malformed("unreadable character")
            self.at = match.end()
            _TAKE[match.lastgroup or ""](self, match.group())
        return self.tokens

    def add(self, kind: str, text: str) -> None:
        """Append a token and keep the depth of brackets inside which commas separate."""
        self.tokens.append(Token(kind, text, self.spaced))
        self.spaced = False
        if kind == "sign" and text != "{" and text != "}":
            self.depth += (text in OPEN) - (text in CLOSE)

    def space(self, text: str) -> None:
        self.spaced = True

    def grouped(self, text: str) -> None:
        # Nobody lists "1, 000": what has zeros in front is the inside of a number.
        thousands = self.reading.thousands or re.search(r",0\d", text) is not None
        if self.depth == 0 and thousands and _THOUSANDS.fullmatch(text):
            self.add("number", text.replace(",", ""))
            return
        for i, part in enumerate(text.split(",")):
            if i:
                self.add("sign", ",")
            self.add("number", part)

    def number(self, text: str) -> None:
        self.add("number", text)

    def scientific(self, text: str) -> None:
        if not self.reading.exponents:
            self.at -= len(text) - text.index("e")
        self.add("number", text if self.reading.exponents else text.partition("e")[0])

    def hex(self, text: str) -> None:
        raise Malformed("a hexadecimal number")

    def escaped(self, text: str) -> None:
        plain = text[1]
        if plain in "{}\\":
            self.add("sign", text)
        elif plain == "|":
            raise Unfamiliar(text)
        else:
            self.sign(plain)

    def sign(self, text: str) -> None:
        same = {"**": "^", "==": "=", "<=": r"\le", ">=": r"\ge", "!=": r"\ne", "*": r"\cdot"}.get(text, text)
        kind = "text" if same in units.SYMBOLS else "command" if same.startswith("\\") else "sign"
        self.add(kind, same)

    def command(self, text: str) -> None:
        name = SAME_COMMAND.get(text[1:], text[1:])
        if name in TEXT_COMMANDS:
            return self._text_command(name)
        if name == "degree":
            self.add("sign", "^")
            return self.add("command", r"\circ")
        if name in ("{", "}"):
            return self.add("sign", f"\\{name}")
        if not name[0].isalpha():
            return self.sign(name)
        if len(name) == 1:
            return self.add("letter", name)
        return self.add("sign" if name in ("begin", "end") else "command", f"\\{name}")

    def _text_command(self, name: str) -> None:
        start = self._skip_space()
        end = self._closing(start)
        if end is None:
            raise Malformed("a text command without braces")
        content = self.text[start + 1 : end]
        self.at = end + 1
        if self._is_math(name, content):
            if self.nesting > 3:
                raise Malformed("text commands nest too deep")
            inner = _Lexer(content, self.reading, nesting=self.nesting + 1)
            self.tokens += [
                t._replace(spaced=t.spaced or self.spaced) if i == 0 else t for i, t in enumerate(inner.run())
            ]
            self.spaced = False
        elif content.strip() in FUNCTIONS:
            self.add("command", f"\\{content.strip()}")
        else:
            self._words(content)

    def _is_math(self, name: str, content: str) -> bool:
        bare = content.strip()
        return (
            name in MATH_FONTS
            or bare in ("e", "i")
            or bool(re.match(r"[-+(\[$]*\s*\\?[\d$]", bare))
            or ("\\" in bare and not bare.replace("\\", "").isalpha())
        )

    def _words(self, content: str) -> None:
        for word in content.split() or [""]:
            low = word.lower().strip(",.;")
            if low in CONNECTIVES:
                self._connect(low)
            elif word:
                self.spaced = True
                self.add("text", word.rstrip(",;"))
            if word.endswith((",", ";")):
                self.add("sign", word[-1])
        self.in_unit = True

    def _connect(self, word: str) -> None:
        if self.tokens and self.tokens[-1].text == "," and CONNECTIVES[word] == ";":
            self.tokens.pop()
        self.add("sign", CONNECTIVES[word])

    def _skip_space(self) -> int:
        start = self.at
        while start < len(self.text) and self.text[start].isspace():
            start += 1
        return start

    def _closing(self, start: int) -> int | None:
        if self.closing is None:
            self.closing = _matching(self.text)
        return self.closing.get(start)

    def word(self, text: str) -> None:
        low = text.lower()
        if low in CONNECTIVES:
            return self._connect(low)
        if self._is_unit(text):
            self.in_unit = True
            return self.add("text", text)
        if low in FUNCTIONS or low in ("pi", "infinity", "inf", "oo"):
            return self.add("command", f"\\{SAME_COMMAND.get(low, low)}")
        if text in GREEK:
            return self.add("command", f"\\{text}")
        if (function := APPLIED.fullmatch(text)) is not None:
            self.add("command", f"\\{function[1]}")
            return self._letters(function[2])
        return self._letters(text) if self._is_product(text) else self.add("text", text)

    def _letters(self, text: str) -> None:
        for letter in text:
            self.add("letter", letter)

    def _is_unit(self, text: str) -> bool:
        if not self.tokens:
            return False
        if self.tokens[-1].text == r"\circ" and text in ("C", "F"):
            return True
        after_value = self.tokens[-1].kind in ("number", "text") or self.tokens[-1].text in (")", "}")
        if len(text) > 1:
            known = text in units.WORDS or (len(text) > 2 and text.lower() in units.WORDS)
            return known and after_value
        is_place = self.in_unit or (self.reading.unit_letters and after_value)
        return is_place and text in units.LETTERS

    def _is_product(self, text: str) -> bool:
        if len(text) == 1:
            return True
        beside_text = bool(self.tokens) and self.tokens[-1].kind == "text"
        if text.lower() in SHORT_WORDS or beside_text or not text.isascii():
            return False
        return len(text) <= 3 or (len(text) <= 8 and set(text.lower()) <= PRODUCT_LETTERS)


def _matching(text: str) -> dict[int, int]:
    """Where each opening brace closes."""
    found, stack = {}, []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            found[stack.pop()] = match.start()
    return found


_TAKE: dict[str, Callable[[_Lexer, str], None]] = {
    kind: getattr(_Lexer, kind)
    for kind in ("space", "grouped", "hex", "scientific", "number", "command", "escaped", "word", "sign")
}
