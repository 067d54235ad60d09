# SPDX-License-Identifier: Apache-2.0
"""JSON lines: a run that is taken up again, and files that are refused."""

import pytest

from trl_diversity.evaluation.journal import Journal, read_rows, write_rows


def test_rows_survive_and_a_torn_line_is_removed(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    journal = Journal(path, {"n": 3, "names": ("a",)})
    journal.append({"id": "x", "text": "ä\n"})
    journal.append({"id": "y"})
    with open(path, "a") as file:
        file.write('{"id": "z", "te')  # the machine died here
    again = Journal(path, {"n": 3, "names": ["a"]})
    assert list(again.rows) == ["x", "y"] and "x" in again and "z" not in again
    again.append({"id": "z"})
    assert [row["id"] for row in read_rows(path)] == ["x", "y", "z"]


def test_other_settings_are_refused(tmp_path):
    Journal(tmp_path / "rows.jsonl", {"temperature": 1.0}).append({"id": 1})
    with pytest.raises(ValueError, match=r"temperature was 1\.0, is 0\.6\)\. Use the same ones, or another output"):
        Journal(tmp_path / "rows.jsonl", {"temperature": 0.6})


def test_settings_without_rows_do_not_bind(tmp_path):
    Journal(tmp_path / "rows.jsonl", {"a": 1})
    assert Journal(tmp_path / "rows.jsonl", {"a": 2}).rows == {}


def test_parquet_holds_the_same_rows(tmp_path):
    from datasets import Dataset

    rows = [{"prompt": "a", "id": 1}, {"prompt": "b", "id": None}]
    Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    assert list(read_rows(tmp_path / "rows.parquet")) == rows


def test_lines_are_read_strictly(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n[1]\n')
    with pytest.raises(ValueError, match="line 3: expected an object, got list"):
        list(read_rows(path))
    path.write_text('{"a": 1}\n{"a"\n')
    with pytest.raises(ValueError, match="line 2: "):
        list(read_rows(path))


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, [{"a": 1}])

    def broken():
        yield {"a": 2}
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_rows(path, broken())
    assert list(read_rows(path)) == [{"a": 1}] and len(list(tmp_path.iterdir())) == 1
