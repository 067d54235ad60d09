# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity partition`: the clusters it writes, the lines it refuses, and what it leaves on disk."""

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.conftest import read_lines, write_lines
from trl_diversity.diversity import CompletionGroup, PartitionDiversity
from trl_diversity.equivalence import load_equivalence_model
from trl_diversity.scripts import partition


class SameFirstWord:
    """Texts mean the same if they begin with the same word."""

    threshold = 0.5

    def __init__(self) -> None:
        self.batches: list[int] = []

    def score_pairs(self, pairs, prompts=None):
        self.batches.append(len(pairs))
        return [float(first.split()[0] == second.split()[0]) for first, second in pairs]


def first_word_clusters(texts: list[str]) -> tuple[list[int], list[float]]:
    """What `SameFirstWord` amounts to, without pairs."""
    words = [text.split()[0] for text in texts]
    order = list(dict.fromkeys(words))
    others = max(len(words) - 1, 1)
    scores = [(len(words) - words.count(word)) / others if len(words) > 1 else 1.0 for word in words]
    return [order.index(word) for word in words], scores


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "groups.jsonl", tmp_path / "out.jsonl"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SameFirstWord:
    model = SameFirstWord()
    monkeypatch.setattr("trl_diversity.equivalence.load_equivalence_model", lambda *arguments, **options: model)
    return model


def run(files: tuple[Path, Path], *argv: str, model: str = "fake") -> None:
    source, target = files
    arguments = ["--input", str(source), "--output", str(target), "--model", model, *argv]
    partition.run(arguments, prog="trl-diversity partition")


def chat(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def test_labels_and_diversity_are_added_to_every_line(files, model, capsys):
    groups = [
        ["a cat", "a dog", "the bird", "one fish"],
        ["x"],
        ["x y"] * 5,
        ["b", "a", "b c", "a c", "d"],
    ]
    rows: list[dict[str, Any]] = [{"prompt": "p", "completions": group, "id": i} for i, group in enumerate(groups)]
    rows.append(
        {"prompt": chat("user", "p"), "completions": [chat("assistant", text) for text in groups[0]], "ä": "ö"}
    )
    write_lines(files[0], rows)
    run(files)
    written = read_lines(files[1])
    assert [{key: row[key] for key in row if key not in ("labels", "diversity")} for row in written] == rows
    for row, texts in zip(written, [*groups, groups[0]], strict=True):
        assert (row["labels"], row["diversity"]) == first_word_clusters(texts)
    shown = capsys.readouterr()
    asked = sum(model.batches)
    assert f"5 groups, 2.20 clusters per group, {asked} pairs asked, {6 + 0 + 10 + 10 + 6 - asked} pairs skipped." in (
        shown.out
    )
    assert "partition:" in shown.err and "100%" in shown.err  # the progress bar


def test_real_classifier_gives_what_the_library_gives(files, pair_classifier_path):
    texts = [["yes the cat", "no the dog", "blue river", "it is green"], ["a cat", "not a cat", "a cat", ""]]
    write_lines(files[0], [{"prompt": "word", "completions": group} for group in texts])
    for argv, options in (
        (["--threshold", "0.5"], {}),
        (["--threshold=6e-1", "--clustering", "greedy", "--short-answer-rule", "--batch_groups", "1"], None),
    ):
        run(files, *argv, model=pair_classifier_path)
        threshold = 0.5 if options is not None else 0.6
        measure = PartitionDiversity(
            load_equivalence_model(pair_classifier_path, threshold=threshold, device="cpu"),
            clustering="closure" if options is not None else "greedy",
            short_answer_rule=options is None,
        )
        expected = measure([CompletionGroup("word", group) for group in texts])
        for row, result in zip(read_lines(files[1]), expected, strict=True):
            assert row["labels"] == result.labels and row["diversity"] == pytest.approx(result.scores)


def test_options_reach_the_model(files, monkeypatch):
    calls = []

    def load(name, **options):
        calls.append((name, options))
        return SameFirstWord()

    monkeypatch.setattr("trl_diversity.equivalence.load_equivalence_model", load)
    write_lines(files[0], [{"prompt": "p", "completions": ["a", "b"]}])
    run(files, model="owner/name")
    run(files, "--threshold", "0.3", "--device", "cpu", "--dtype", "float32", "--trust_remote_code")
    silent = {"threshold": None, "device": None, "dtype": None, "trust_remote_code": False}
    loud = {"threshold": 0.3, "device": "cpu", "dtype": "float32", "trust_remote_code": True}
    assert calls == [("owner/name", silent), ("fake", loud)]


def test_compared_text_and_raw_judgements(files, model):
    texts = ["<think>a</think>x", "<think>b</think>x", "<think>c</think>y"]
    write_lines(files[0], [{"prompt": "p", "completions": texts}])
    run(files, "--diversity_text", "after_think")
    assert read_lines(files[1])[0]["labels"] == [0, 0, 1]
    run(files)
    assert read_lines(files[1])[0]["labels"] == [0, 1, 2]
    run(files, "--clustering", "pairwise", "--diversity-text", "after_think")
    assert read_lines(files[1])[0]["labels"] is None
    assert read_lines(files[1])[0]["diversity"] == [0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: "),
        ("[]", "line 3: expected an object"),
        ('{"completions": ["a"]}', "line 3: the key 'prompt' is missing; there are 'completions'"),
        ('{"prompt": "p", "responses": ["a"]}', "line 3: the key 'completions' is missing"),
        ('{"prompt": "p", "completions": []}', "line 3: `completions` is a list of at least one"),
        ('{"prompt": "p", "completions": "abc"}', "line 3: `completions` is a list of at least one"),
        ('{"prompt": "p", "completions": ["a", null]}', "line 3: `completions` holds None"),
        ('{"prompt": 3, "completions": ["a"]}', "line 3: `prompt` holds 3"),
        ('{"prompt": [{"content": "p"}], "completions": ["a"]}', "line 3: `prompt` holds"),
    ],
)
def test_malformed_line_is_named_and_nothing_is_written(files, model, line, message):
    good = json.dumps({"prompt": "p", "completions": ["a", "b"]})
    files[0].write_text(f"{good}\n\n{line}\n{good}\n")
    files[1].write_text("what was there before")
    with pytest.raises(SystemExit, match=re.escape(f"{files[0]}, {message}")):
        run(files, "--batch_groups", "1")
    assert files[1].read_text() == "what was there before"
    assert {path.name for path in files[0].parent.iterdir()} == {"groups.jsonl", "out.jsonl"}


def test_groups_are_judged_in_batches_without_holding_the_file(files, model):
    """A file of 12 MB passes through in a fraction of its size."""
    row = {"prompt": "p" * 6000, "completions": ["a", "b"]}
    write_lines(files[0], [row] * 2000)
    tracemalloc.start()
    run(files, "--batch_groups", "10")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert model.batches == [10] * 200
    assert peak < files[0].stat().st_size / 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--clustering", "greddy"], "expected 'closure' or 'greedy' or 'pairwise', got 'greddy'"),
        (["--treshold", "0.5"], "unknown option `--treshold`. The nearest is `--threshold`."),
        (["--threshold", "1.5"], "`threshold` lies in [0, 1]; got 1.5."),
        (["--batch_groups", "0"], "`batch_groups` is at least 1"),
        (["--input", "absent.jsonl"], "there is no file 'absent.jsonl'"),
    ],
)
def test_wrong_arguments(files, model, capsys, argv, message):
    write_lines(files[0], [])
    with pytest.raises(SystemExit) as stopped:
        run(files, *argv)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_input_is_not_overwritten(files, model, capsys):
    write_lines(files[0], [{"prompt": "p", "completions": ["a"]}])
    with pytest.raises(SystemExit):
        run((files[0], files[0]))
    assert "the same file" in capsys.readouterr().err
    assert read_lines(files[0]) == [{"prompt": "p", "completions": ["a"]}]


def test_required_arguments_may_come_from_a_file(files, model, tmp_path, capsys):
    write_lines(files[0], [{"prompt": "p", "completions": ["a", "b"]}])
    config = tmp_path / "partition.yaml"
    config.write_text(f"input: {files[0]}\noutput: {files[1]}\nmodel: fake\n")
    partition.run(["--config", str(config)])
    assert read_lines(files[1])[0]["labels"] == [0, 1]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        partition.run(["--input", str(files[0])])
    assert "required: --output, --model" in capsys.readouterr().err


def test_empty_file(files, model, capsys):
    files[0].write_text("\n")
    run(files)
    assert files[1].read_text() == "" and "0 groups, 0 pairs asked" in capsys.readouterr().out
