# SPDX-License-Identifier: Apache-2.0
import io

from rich.cells import cell_len
from rich.console import Console

from m2flow.observe.sample_table import MAX_CELLS, cut, sample_table, shown


def drawn(rows, width=100):
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(sample_table(3, rows))
    return file.getvalue()


def row(completion, **more):
    return {"prompt": "1 + 1 =", "completion": completion, "reward": 1.0, "tokens": 3, "finish_reason": "stop", **more}


def test_a_row_shows_prompt_completion_reward_and_length():
    line = next(line for line in drawn([row("2", reward=0.25)]).splitlines() if "1 + 1" in line)
    assert line.split() == ["0.250", "1", "+", "1", "=", "2", "3"]


def test_markup_in_a_completion_is_text():
    assert "[bold red]2[/bold red] [/nonsense]" in drawn([row("[bold red]2[/bold red] [/nonsense]")])


def test_control_characters_are_written_out():
    text = drawn([row("a\x1b[2J\x07\x00\u202eb\u009b1m\r")])
    assert "a\\x1b[2J\\x07\\x00\\u202eb\\x9b1m\\r" in text
    assert not any(character in text for character in "\x1b\x07\x00\u202e\u009b\r")


def test_line_breaks_stay_and_are_marked():
    lines = [line.strip() for line in drawn([row("first\nsecond\n")]).splitlines()]
    assert any(line.endswith("first↵") or "first↵" in line for line in lines) and any(
        line == "second↵" for line in lines
    )


def test_wide_characters_keep_the_columns_aligned():
    lines = [
        line for line in drawn([row("中文字符" * 30), row("😀" * 40), row("x" * 200)]).splitlines() if line.strip()
    ]
    assert {cell_len(line) for line in lines[2:]} == {cell_len(lines[2])}
    assert cell_len(lines[2]) <= 100


def test_long_texts_are_cut_a_prompt_at_its_beginning():
    assert cut("a" * 1000) == "a" * (MAX_CELLS - 1) + "…"
    assert cut("b" * 1000 + " 1 + 1 =", keep_end=True).endswith("b 1 + 1 =")
    assert cell_len(cut("中" * 1000)) <= MAX_CELLS
    assert cut("short") == "short"


def test_parts_of_a_reward_have_columns_where_there_are_several():
    text = drawn(
        [row("2", rewards={"math_answer": 1.0, "length": None}), row("3", rewards={"math_answer": 0.0, "length": -0.5})]
    )
    assert "math_answer" in text and "-0.500" in text
    assert "math_answer" not in drawn([row("2", rewards={"math_answer": 1.0})])


def test_a_sample_without_reward_or_cut_at_the_limit_says_so():
    text = drawn([row("2", reward=None), row("3", finish_reason="length")])
    assert "–" in text and "3 cut" in text


def test_joiners_of_emoji_and_spaces_of_every_kind_are_kept():
    assert shown("👩\u200d🔬\u00a0\t|") == "👩\u200d🔬\u00a0    |"
