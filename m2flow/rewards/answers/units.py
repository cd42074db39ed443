# SPDX-License-Identifier: Apache-2.0
"""Units of measure, currencies and counting words, spelled in many ways. Conversions are exact."""

import re
from fractions import Fraction

from m2flow.rewards.answers.spelling import words_of
from m2flow.rewards.answers.tree import Unit

_METRIC = {"k": Fraction(1000), "c": Fraction(1, 100), "m": Fraction(1, 1000), "d": Fraction(1, 10)}
_PREFIX = {"kilo": "k", "centi": "c", "milli": "m", "deci": "d"}

# name of the base unit: (scale, spellings)
_SPELLINGS: dict[tuple[str, Fraction], str] = {
    ("meter", Fraction("0.0254")): "inch inches in",
    ("meter", Fraction("0.3048")): "foot feet ft",
    ("meter", Fraction("0.9144")): "yard yards yd",
    ("meter", Fraction("1609.344")): "mile miles mi",
    ("second", Fraction(1)): "s sec secs second seconds",
    ("second", Fraction(60)): "min mins minute minutes",
    ("second", Fraction(3600)): "h hr hrs hour hours",
    ("second", Fraction(86400)): "day days",
    ("second", Fraction(604800)): "week weeks",
    ("year", Fraction(1)): "year years yr yrs",
    ("year", Fraction(1, 12)): "month months",
    ("pound", Fraction(1)): "lb lbs pound pounds",
    ("pound", Fraction(1, 16)): "oz ounce ounces",
    ("ton", Fraction(1)): "ton tons",
    ("dollar", Fraction(1)): "$ dollar dollars usd",
    ("dollar", Fraction(1, 100)): "¢ cent cents penny pennies",
    ("euro", Fraction(1)): "€ euro euros eur",
    ("sterling", Fraction(1)): "£ gbp",
    ("yen", Fraction(1)): "¥ yen jpy",
    ("rupee", Fraction(1)): "₹ rupee rupees inr",
    ("yuan", Fraction(1)): "yuan rmb cny",
    ("degree", Fraction(1)): "° degree degrees deg",
    ("celsius", Fraction(1)): "celsius C",
    ("fahrenheit", Fraction(1)): "fahrenheit F",
    ("radian", Fraction(1)): "rad radian radians",
    ("kelvin", Fraction(1)): "K kelvin kelvins",
    ("newton", Fraction(1)): "N newton newtons",
    ("joule", Fraction(1)): "J joule joules",
    ("joule", Fraction(1000)): "kJ",
    ("watt", Fraction(1)): "W watt watts",
    ("watt", Fraction(1000)): "kW",
    ("volt", Fraction(1)): "V volt volts",
    ("ampere", Fraction(1)): "A amp amps ampere amperes",
    ("ohm", Fraction(1)): "Ω ohm ohms",
    ("hertz", Fraction(1)): "Hz hertz",
    ("ante meridiem", Fraction(1)): "am AM a.m.",
    ("post meridiem", Fraction(1)): "pm PM p.m.",
    ("unit", Fraction(1)): "unit units",
}
_COUNTS = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_NO_UNITS = words_of(
    "a an and are as at but by if is it no none not nor of off or so than that the then to was with wrong "
    "maybe probably perhaps possibly about approximately approx roughly around but"
)
SYMBOLS = "$€£¥₹¢°"
LETTERS = frozenset("mgshLNJWVKACF")
"""Units of one letter, which are variables elsewhere."""

_WORD = re.compile(r"[^\W\d_]+|[$€£¥₹¢°]|\^\s*-?\s*\d+|[/·*]|\S")
_MAX_WORDS = 8


def _table() -> dict[str, tuple[str, Fraction, int]]:
    found = {spelling: (base, scale, 1) for (base, scale), row in _SPELLINGS.items() for spelling in row.split()}
    for short, long, base, unit, power in (
        ("m", "meter", "meter", Fraction(1), 1),
        ("g", "gram", "gram", Fraction(1), 1),
        ("L", "liter", "meter", Fraction(1, 1000), 3),
        ("l", "liter", "meter", Fraction(1, 1000), 3),
    ):
        spelled = [long, long.replace("er", "re")] if long.endswith("er") else [long]
        found[short] = (base, unit, power)
        found.update({f"{word}{s}": (base, unit, power) for word in spelled for s in ("", "s")})
        for name, letter in _PREFIX.items():
            entry = (base, unit * _METRIC[letter], power)
            found[letter + short] = entry
            found.update({f"{name}{word}{s}": entry for word in spelled for s in ("", "s")})
    found["mL"] = found["ml"]
    return found


_KNOWN = _table()
_SHORT = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "sqft": "ft^2"}
WORDS = (
    frozenset(word for word in _KNOWN if len(word) > 1 and word != "in")
    | frozenset(_COUNTS)
    | {"in", "sq", "cu"}
    | frozenset(_SHORT)
)
"""Spellings of more than one letter."""


def read_unit(text: str) -> Unit | None:
    """The unit that ``text`` spells (``m/s``, ``square cm``, ``million dollars``, ``apples``); ``None`` if it is none.

    Words that are not known count as units of their own, without a plural's s.
    """
    words = _WORD.findall(_SHORT.get(text, text))
    if not words or len(words) > _MAX_WORDS or any(word.lower() in _NO_UNITS for word in words):
        return None
    return _Builder(words).unit()


class _Builder:
    """Folds the words of a unit from left to right."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.multiplier, self.scale = Fraction(1), Fraction(1)
        self.dimensions: dict[str, int] = {}
        self.last: tuple[str, Fraction, int] | None = None
        self.next_power, self.sign = 1, 1

    def unit(self) -> Unit | None:
        """The whole; ``None`` where a word has no place in a unit."""
        if not all(self._take(word) for word in self.words) or self.next_power != 1:
            return None
        if self.dimensions.keys() & {"celsius", "fahrenheit"}:
            self.dimensions.pop("degree", None)
        found = tuple(sorted((name, power) for name, power in self.dimensions.items() if power))
        return Unit(self.multiplier, self.scale, found)

    def _take(self, word: str) -> bool:
        low = word.lower()
        if word in "/·*" or low == "per":
            self.sign = -1 if word == "/" or low == "per" else self.sign
            return True
        if low in _COUNTS:
            self.multiplier *= _COUNTS[low]
            return True
        if low in ("square", "sq", "cubic", "cu"):
            self.next_power = 2 if low.startswith("sq") else 3
            return True
        if low in ("squared", "cubed"):
            return self._raise(2 if low == "squared" else 3)
        if word.startswith("^"):
            return len(word) > 1 and self._raise(int(word[1:].replace(" ", "")[:4]))
        return self._multiply(word)

    def _multiply(self, word: str) -> bool:
        if not (word[0].isalpha() or word in SYMBOLS):
            return False
        low = word.lower()
        unknown = (low[:-1] if low.endswith("s") and len(low) > 3 else low, Fraction(1), 1)
        base, scale, power = _KNOWN.get(word) or _KNOWN.get(low) or unknown
        exponent = self.next_power * self.sign
        self._add((base, scale, power), exponent)
        self.last, self.next_power = (base, scale, power * self.sign), 1
        return True

    def _raise(self, exponent: int) -> bool:
        if self.last is None or not 0 < abs(exponent) < 10:
            return False
        base, scale, power = self.last
        sign = 1 if power > 0 else -1
        self._add((base, scale, abs(power)), sign * (exponent - 1))
        self.last = None
        return True

    def _add(self, unit: tuple[str, Fraction, int], exponent: int) -> None:
        base, scale, power = unit
        self.scale *= scale**exponent
        self.dimensions[base] = self.dimensions.get(base, 0) + power * exponent
