# SPDX-License-Identifier: Apache-2.0
import pytest

from m2flow.rewards.answers.lexing import Reading
from m2flow.rewards.answers.shapes import read, words
from m2flow.rewards.answers.tree import (
    Collection,
    Grid,
    Malformed,
    Many,
    Named,
    Ordered,
    Relation,
    Unfamiliar,
    Value,
    Words,
)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("5", Value),
        ("5 cm", Value),
        ("((5))", Value),
        ("Monday", Words),
        ("5 is wrong", Words),
        ("3 or 4", Many),
        ("1, 2", Many),
        (r"\pm 2", Many),
        (r"\{1,2\}", Collection),
        (r"\emptyset", Collection),
        (r"[0,1]\cup[2,3]", Collection),
        ("(1,2)", Ordered),
        ("[0,1)", Ordered),
        ("x>5", Ordered),
        ("1<x<2", Ordered),
        (r"\mathbb{R}", Ordered),
        ("3:4", Ordered),
        (r"\begin{pmatrix}1&2\end{pmatrix}", Grid),
        ("x+y=2", Relation),
        ("x+y<2", Relation),
        (r"x\ne 2", Relation),
        ("x=5", Named),
        (r"x\in[0,1]", Named),
        (r"\text{Area}=5", Named),
    ],
)
def test_an_answer_has_its_shape(text, shape):
    assert type(read(text, Reading())) is shape


@pytest.mark.parametrize(
    "text", ["", ".", "5+", "1,,2", r"[0,1]\cup", "5=", r"\begin{pmatrix}1&2\\3\end{pmatrix}", "x=1=2", "???"]
)
def test_what_breaks_off_is_malformed(text):
    with pytest.raises(Malformed):
        read(text, Reading())


@pytest.mark.parametrize("text", [r"\int x dx", r"\begin{cases}1\end{cases}", r"5 \to 6", "1<x<y<2"])
def test_notation_that_is_not_read_is_unfamiliar(text):
    with pytest.raises(Unfamiliar):
        read(text, Reading())


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"\text{Monday}", "monday"),
        (" The Monday. ", "monday"),
        ("(B)", "b"),
        ("B)", "b"),
        ("option C", "c"),
        (r"\textbf{(B)}", "b"),
        ("Yes!", "yes"),
        ("n!", "n!"),
        ("2X", "2X"),
    ],
)
def test_words_lose_what_does_not_count(text, plain):
    assert words(text) == plain
