# SPDX-License-Identifier: Apache-2.0
"""What holds of every source of rows: JSON Lines, Parquet, saved Hugging Face data sets."""

from collections.abc import Callable
from typing import Any

import pytest

from m2flow.data.prompts import Prompts, PromptsConfig
from m2flow.data.sources.base import Source
from m2flow.errors import DataError

Open = Callable[..., Source]
ROWS = [{"prompt": f"{i} + {i} =", "answer": str(2 * i), "level": i} for i in range(5)]
TURNS = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"}]


def test_plain_rows_keep_their_other_columns(opened: Open):
    source = opened(ROWS)
    assert len(source) == 5
    assert [(p.text, p.messages, p.columns) for p in map(source.__getitem__, range(5))] == [
        (f"{i} + {i} =", None, {"answer": str(2 * i), "level": i}) for i in range(5)
    ]
    assert len({source[i].id for i in range(5)}) == 5


def test_columns_are_mapped(opened: Open):
    rows = [{"question": "a?", "solution": "b", "key": "x"}, {"question": "c?", "solution": "d", "key": "y"}]
    source = opened(rows, prompt_column="question", answer_column="solution", id_column="key")
    assert [(p.id, p.text, p.columns) for p in (source[0], source[1])] == [
        ("x", "a?", {"answer": "b", "key": "x"}),
        ("y", "c?", {"answer": "d", "key": "y"}),
    ]


def test_chats_are_kept_and_plain_text_becomes_one(opened: Open):
    chats = opened([{"chat": TURNS, "answer": "2"}], messages_column="chat", prompt_column=None)
    assert [dict(m) for m in chats[0].messages or ()] == TURNS and chats[0].text is None
    assert chats[0].columns == {"answer": "2"}
    made = opened(ROWS, chat=True, system_prompt="Add.")
    assert [m["content"] for m in made[1].messages or ()] == ["Add.", "1 + 1 ="]


def test_any_text_comes_back_as_it_was(opened: Open):
    texts = ["naïve Ω ≠ 漢字 🜚", "two\nlines\u2028and\x85others", ' "quoted" \\ ', "x" * 1_000_000, "\ufeffmark"]
    source = opened([{"prompt": text, "answer": text} for text in texts])
    assert [source[i].text for i in range(5)] == texts
    assert [source[i].columns["answer"] for i in range(5)] == texts


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {"prompt_column": "promt"}, r"no column 'promt'.*did you mean 'prompt'\?"),
        (ROWS, {"answer_column": "gold"}, r"no column 'gold'.*set answer_column to none"),
        (ROWS, {"answer_column": "level"}, "a column 'answer' besides 'level'"),
        ([{"prompt": "a", "answer": "b"}, {"prompt": None, "answer": "c"}], {}, r"holds None \(NoneType\)"),
        ([{"prompt": "a", "answer": "b"}, {"prompt": " ", "answer": "c"}], {}, "column 'prompt' is empty"),
        ([{"prompt": 3, "answer": "b"}], {}, r"holds 3 \(int\), expected text"),
        ([{"prompt": "a", "answer": "b", "n": 1}] * 2, {"id_column": "n"}, "the id '1' was taken already"),
        ([{"m": [], "answer": "2"}], {"messages_column": "m", "prompt_column": None}, "expected a list of messages"),
        (
            [{"m": [*TURNS, {"role": "assistant", "content": "2"}], "answer": "2"}],
            {"messages_column": "m", "prompt_column": None},
            "ends with the assistant's message",
        ),
        (
            [{"m": [{"role": "robot", "content": "2"}], "answer": "2"}],
            {"messages_column": "m", "prompt_column": None},
            "has the role 'robot', expected one of system,",
        ),
        (
            [{"m": TURNS, "answer": "2"}],
            {"messages_column": "m", "prompt_column": None, "system_prompt": "Add."},
            "has a system message already",
        ),
        (ROWS, {"messages_column": "prompt"}, "give one of prompt_column and messages_column"),
        (ROWS, {"system_prompt": "Add."}, "system_prompt is for a chat: set chat to true"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(opened: Open, rows: Any, options: dict[str, Any], message: str):
    with pytest.raises(DataError, match=f"(?s){message}"):
        opened(rows, **options)


def test_ten_bad_rows_are_named_and_the_rest_counted(opened: Open):
    rows = [{"prompt": " " if i % 2 else "a", "answer": str(i)} for i in range(30)]
    with pytest.raises(DataError, match="has 15 rows that cannot be used") as caught:
        opened(rows)
    assert len(str(caught.value).splitlines()) == 12 and str(caught.value).endswith("and 5 more")


def test_a_reader_crosses_epochs_and_goes_on_where_it_was(opened: Open):
    path = opened(ROWS).config
    config = PromptsConfig(source=path, split="all", seed=3)
    first = Prompts(config)
    before = [p.text or "" for p in first.take(7)]
    assert sorted(before[:5]) == sorted(row["prompt"] for row in ROWS) and first.epoch == 1
    resumed = Prompts(config)
    resumed.load_state(first.state())
    assert resumed.take(11) == first.take(11)


def test_equal_prompts_are_on_one_side_of_a_split_in_every_format(opened: Open):
    rows = [{"prompt": f"p{i % 40}", "answer": str(i)} for i in range(80)]
    config = opened(rows).config
    sides = [Prompts(PromptsConfig(source=config, split=split, shuffle=False)) for split in ("train", "held_out")]
    train, held_out = ({p.text for p in side.take(len(side))} for side in sides)
    assert not train & held_out and len(train | held_out) == 40 and sum(map(len, sides)) == 80
    # The hash is of the prompt alone, so that the same prompts are held out whatever the file is.
    assert held_out == {"p10", "p27", "p36"}
