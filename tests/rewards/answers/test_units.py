# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import pytest

from m2flow.rewards.answers.units import read_unit


@pytest.mark.parametrize(
    "spellings",
    [
        ("cm", "centimeter", "centimetres", "Centimeters"),
        ("m/s", "meters per second", "m s^-1", "m · s^ -1"),
        ("cm^2", "square cm", "sq centimeters", "cm squared", "square centimetres"),
        ("cubic feet", "ft^3", "cu ft"),
        ("dollars", "$", "USD"),
        ("m/s^2", "meters per second squared", "m / s ^ 2"),
        ("L", "liters", "litres"),
        ("mph", "miles per hour", "mi/h"),
        ("degrees celsius", "C", "° C"),
        ("apples", "apple", "Apples"),
    ],
)
def test_spellings_of_one_unit_read_alike(spellings):
    read = {read_unit(text) for text in spellings}
    assert len(read) == 1 and None not in read


@pytest.mark.parametrize(
    ("unit", "base", "factor"),
    [
        ("km", "m", 1000),
        ("mm", "m", Fraction(1, 1000)),
        ("hours", "s", 3600),
        ("km/h", "m/s", Fraction(5, 18)),
        ("cm^2", "m^2", Fraction(1, 10_000)),
        ("L", "m^3", Fraction(1, 1000)),
        ("cents", "dollars", Fraction(1, 100)),
    ],
)
def test_units_of_one_kind_convert_exactly(unit, base, factor):
    a, b = read_unit(unit), read_unit(base)
    assert a is not None and b is not None
    assert a.dimensions == b.dimensions and a.scale / b.scale == factor


def test_counting_words_multiply():
    unit = read_unit("million dollars")
    assert unit is not None
    assert (unit.multiplier, unit.dimensions) == (10**6, (("dollar", 1),))


@pytest.mark.parametrize(
    "text", ["", "or 4", "is wrong", "not", "square", "^", "^2", "m ^ 99", "cm 5", "probably", "a b c d e f g h j"]
)
def test_what_is_no_unit_is_none(text):
    assert read_unit(text) is None
