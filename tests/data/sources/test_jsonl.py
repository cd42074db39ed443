# SPDX-License-Identifier: Apache-2.0
import gzip
from pathlib import Path

import pytest

from m2flow.errors import DataError
from tests.data.sources.conftest import source

GOOD = '{"prompt": "1+1=", "answer": "2"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", r"rows.jsonl:2: not JSON \("),
        (b"", r"rows.jsonl:2: not JSON \("),
        (b'{"prompt": "a", "answer": NaN}', "rows.jsonl:2: holds NaN, which is no JSON"),
        (b'["a"]', r"rows.jsonl:2: holds \['a'\] \(list\), expected a JSON object"),
        (b'{"prompt": "\xff", "answer": "b"}', r"rows.jsonl:2: not UTF-8 \(byte 12\): save the file as UTF-8"),
        (b"[" * 100_000, "rows.jsonl:2: nested too deeply"),
        (
            b'{"prompt": ' + b"7" * 5_000_000 + b"}",
            "rows.jsonl:2: holds a whole number of 5000000 digits: write it as text",
        ),
        (b'{"answer": "b"}', "rows.jsonl:2: no column 'prompt'"),
    ],
)
def test_a_damaged_line_is_named_with_its_number(tmp_path: Path, line: bytes, message: str):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([GOOD.encode(), line, GOOD.encode(), b""]))
    with pytest.raises(DataError, match=message) as caught:
        source("jsonl", path=path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: str):
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"rows.jsonl is empty: expected at least one prompt"):
        source("jsonl", path=tmp_path / "rows.jsonl")


def test_what_editors_leave_behind_does_no_harm(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{GOOD}\r\n{GOOD}\r\n\r\n\n".encode())
    rows = source("jsonl", path=tmp_path / "rows.jsonl")
    assert [rows[i].text for i in range(len(rows))] == ["1+1=", "1+1="]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path):
    for name in ("b.jsonl", "a.jsonl", "c.txt"):
        (tmp_path / name).write_text(f'{{"prompt": "{name}", "answer": "x"}}\n' * 2)
    rows = source("jsonl", path=tmp_path)
    assert [rows[i].id for i in range(4)] == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1", "b.jsonl:2"]
    assert rows[3].text == "b.jsonl"


def test_a_path_that_leads_nowhere_is_said(tmp_path: Path):
    with pytest.raises(DataError, match=r"no .jsonl files in the folder"):
        source("jsonl", path=tmp_path)
    with pytest.raises(DataError, match="there is no file or folder"):
        source("jsonl", path=tmp_path / "nope.jsonl")


def test_a_compressed_file_is_to_be_unpacked(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_bytes(gzip.compress(GOOD.encode()))
    with pytest.raises(DataError, match=r"is compressed.*unpack it with gunzip"):
        source("jsonl", path=tmp_path / "rows.jsonl")


def test_rows_may_hold_different_columns_of_different_types(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "a", "answer": 1}\n{"answer": {"x": [null]}, "prompt": "b", "k": 2.5}\n'
    )
    rows = source("jsonl", path=tmp_path / "rows.jsonl")
    assert [rows[i].columns for i in (0, 1)] == [{"answer": 1}, {"answer": {"x": [None]}, "k": 2.5}]


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n")
    rows = source("jsonl", path=path)
    path.write_text("short\n")
    with pytest.raises(DataError, match="changed while it was in use, line 2"):
        rows[1]
