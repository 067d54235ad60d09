# SPDX-License-Identifier: Apache-2.0
"""Pairs are sampled, and labelled once each by a judge, also when a run was stopped."""

import json
from collections import Counter

import pytest

from tests.loopback import Answer, serving
from trl_diversity.classifiers.labelling import label_pairs
from trl_diversity.classifiers.pair_sampling import Generation, sample_pairs
from trl_diversity.classifiers.pairs import load_pairs
from trl_diversity.evaluation.journal import Journal, read_rows
from trl_diversity.scripts import label_pairs as label_pairs_command
from trl_diversity.scripts import make_pairs


def generations(prompts=3, models=("a", "b"), each=3):
    return [
        Generation(f"p{prompt}", f"text {prompt} {model} {index}", model)
        for prompt in range(prompts)
        for model in models
        for index in range(each)
    ]


def test_pairs_are_distinct_of_one_prompt_and_half_of_two_models():
    rows = sample_pairs(generations(), 4, seed=0)
    assert len(rows) == 12
    for row in rows:
        number = row["prompt"][1:]
        assert row["generation_0"].startswith(f"text {number} {row['model_0']}")
        assert row["generation_1"].startswith(f"text {number} {row['model_1']}")
    assert len({(row["prompt"], frozenset((row["generation_0"], row["generation_1"]))) for row in rows}) == 12
    assert Counter(row["model_0"] != row["model_1"] for row in rows) == {True: 6, False: 6}
    assert sample_pairs(generations(), 4, seed=0) == rows != sample_pairs(generations(), 4, seed=1)
    # What is drawn for one prompt does not depend on the others.
    assert sample_pairs(generations()[6:], 4, seed=0) == rows[4:]


@pytest.mark.parametrize(("share", "across"), [(0.0, 0), (1.0, 9)])
def test_the_share_of_two_models_is_kept_while_there_are_such_pairs(share, across):
    rows = sample_pairs(generations(prompts=1), 6, seed=0, across_models=share)
    assert sum(row["model_0"] != row["model_1"] for row in rows) == min(6, across)
    everything = sample_pairs(generations(prompts=1), 100, seed=0, across_models=share)
    assert len(everything) == 15


def test_equal_texts_make_no_pair():
    with pytest.raises(ValueError, match="no pair to label"):
        sample_pairs([Generation("p", "same", "a"), Generation("p", "same ", "b")], 1, seed=0)


class FirstLetterJudge:
    """Texts are the same if they begin with the same letter; it can stop working after some pairs."""

    threshold = 0.5

    def __init__(self, works_for=10**9):
        self.asked, self.works_for = [], works_for

    def score_pairs(self, pairs, prompts=None):
        if len(self.asked) + len(pairs) > self.works_for:
            raise ConnectionError("gone")
        self.asked += zip(pairs, prompts, strict=True)
        return [float(first[0] == second[0]) for first, second in pairs]


def rows_of(*texts):
    return [{"prompt": "p", "generation_0": first, "generation_1": second, "kept": 1} for first, second in texts]


ROWS = rows_of(("ab", "ac"), ("ab", "bc"), ("ac", "ab"), ("x", "x "), ("bd", "be"), ("be", "cd"))


def test_each_distinct_pair_is_asked_once_and_equal_texts_never(tmp_path):
    judge = FirstLetterJudge()
    labelled = list(label_pairs(ROWS, judge, Journal(tmp_path / "l.jsonl", {}, "pair"), batch_size=2))
    assert [row["similar"] for row in labelled] == [1, 0, 1, 1, 1, 0]
    assert all(row["kept"] == 1 for row in labelled)
    assert sorted(tuple(sorted(pair)) for pair, _ in judge.asked) == [
        ("ab", "ac"),
        ("ab", "bc"),
        ("bd", "be"),
        ("be", "cd"),
    ]


def test_a_stopped_run_asks_only_for_what_is_missing(tmp_path):
    stopped, done = FirstLetterJudge(works_for=2), []
    with pytest.raises(ConnectionError):
        list(label_pairs(ROWS, stopped, Journal(tmp_path / "l.jsonl", {}, "pair"), batch_size=2))
    judge = FirstLetterJudge()
    journal = Journal(tmp_path / "l.jsonl", {}, "pair")
    labelled = list(label_pairs(ROWS, judge, journal, batch_size=2, progress=done.append))
    assert [row["similar"] for row in labelled] == [1, 0, 1, 1, 1, 0]
    assert len(stopped.asked) == 2 and len(judge.asked) == 2
    assert sum(done) == 5  # the distinct pairs


def test_the_order_shown_is_drawn_by_the_texts_not_by_the_file(tmp_path):
    pairs = [(f"a{index}", f"b{index}") for index in range(60)]
    shown = []
    for name, rows in (("x", pairs), ("y", [(second, first) for first, second in pairs])):
        judge = FirstLetterJudge()
        list(label_pairs(rows_of(*rows), judge, Journal(tmp_path / f"{name}.jsonl", {}, "pair")))
        shown.append({pair for pair, _ in judge.asked})
    assert shown[0] == shown[1]
    assert 15 < sum(first.startswith("a") for first, _ in shown[0]) < 45


@pytest.mark.parametrize(("prompt", "label_of_yes"), [("writing", 1), ("math", 0)])
def test_from_generations_to_training_data_by_the_commands(tmp_path, monkeypatch, capsys, prompt, label_of_yes):
    """The sign of the judge's yes: writing asks whether two are equivalent, math whether they differ."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for model in ("small", "large"):
        lines = [{"prompt": f"p{i}", "completions": [f"{model} {i}", f"other {model} {i}"]} for i in range(4)]
        (tmp_path / f"{model}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pairs, output = str(tmp_path / "pairs.jsonl"), str(tmp_path / "labelled.jsonl")
    inputs = [str(tmp_path / f"{model}.jsonl") for model in ("small", "large")]
    make_pairs.run(["--inputs", *inputs, "--output", pairs, "--pairs_per_prompt", "2"])
    assert {row["model_0"] for row in read_rows(pairs)} == {"small", "large"}

    def verdict(asked):
        question = asked.body["messages"][0]["content"]
        return Answer({"choices": [{"message": {"content": "[[yes]]" if " 1\n" in question else "[[no]]"}}]})

    with serving(verdict) as server:
        arguments = ["--input", pairs, "--output", output, "--model", "judge", "--prompt", prompt]
        label_pairs_command.run([*arguments, "--base_url", f"{server.url}/v1", "--max_tokens", "99"])
        assert len(server.asked) == 8
        assert {asked.body["max_tokens"] for asked in server.asked} == {99}
        label_pairs_command.run([*arguments, "--base_url", f"{server.url}/v1"])
        assert len(server.asked) == 8  # all were labelled
    for pair in load_pairs(output):
        assert pair.similar == (label_of_yes if pair.prompt == "p1" else 1 - label_of_yes)
    assert "8 pairs (8 distinct)" in capsys.readouterr().out


def test_another_judge_does_not_continue_the_labels_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps(ROWS[0]) + "\n")
    arguments = ["--input", str(pairs), "--output", str(tmp_path / "out.jsonl")]
    with serving(lambda asked: Answer({"choices": [{"message": {"content": "[[yes]]"}}]})) as server:
        arguments += ["--base_url", server.url]
        label_pairs_command.run([*arguments, "--model", "one"])
        with pytest.raises(SystemExit, match="other settings.*'one'.*'two'"):
            label_pairs_command.run([*arguments, "--model", "two"])


def test_rows_without_texts_are_an_error(tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "p", "generation_0": "a"}) + "\n")
    with pytest.raises(SystemExit, match="row 1.*'generation_1' is None"):
        label_pairs_command.run(
            ["--input", str(pairs), "--output", str(tmp_path / "o.jsonl"), "--base_url", "http://x", "--model", "m"]
        )
    with pytest.raises(SystemExit, match="row 1.*`completions`"):
        make_pairs.run(["--inputs", str(pairs), "--output", str(tmp_path / "o.jsonl")])
