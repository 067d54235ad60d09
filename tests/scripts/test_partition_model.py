# SPDX-License-Identifier: Apache-2.0
"""The options that choose an equivalence model: here, on servers, a judge, or a class of one's own."""

import json
from pathlib import Path

import pytest

from tests.scripts.conftest import write_lines
from trl_diversity import cli, equivalence
from trl_diversity.scripts.partition_model import PartitionModelArguments


JUDGE = {"judge_base_url": "http://me:hidden@localhost:1/v1", "judge_model": "m"}


def test_each_kind_is_made_with_its_options(monkeypatch):
    made = []
    for name in ("load_equivalence_model", "ServerEquivalence", "JudgeEquivalence"):
        monkeypatch.setattr(equivalence, name, lambda *args, name=name, **options: made.append((name, args, options)))
    urls = ["http://a", "http://b"]
    PartitionModelArguments("x/y", 0.3).load("cpu", "float32", True)
    PartitionModelArguments(partition_server_urls=urls).load()
    PartitionModelArguments("x/y", 0.3, urls).load(trust_remote_code=True)
    PartitionModelArguments(**JUDGE, judge_prompt="math").load()
    options = {"threshold": 0.3, "device": "cpu", "dtype": "float32", "trust_remote_code": True}
    assert made == [
        ("load_equivalence_model", ("x/y",), options),
        ("ServerEquivalence", (urls, None, None), {"trust_remote_code": False}),
        ("ServerEquivalence", (urls, "x/y", 0.3), {"trust_remote_code": True}),
        ("JudgeEquivalence", ("http://me:hidden@localhost:1/v1", "m", "math"), {}),
    ]


def test_no_user_of_a_url_is_written_down():
    described = PartitionModelArguments(**JUDGE).described()
    servers = PartitionModelArguments(partition_server_urls=["http://me:hidden@a"]).described()
    assert described["judge_base_url"] == "localhost:1/v1" and servers["partition_server_urls"] == ["a"]
    assert "hidden" not in json.dumps([described, servers])


def test_a_class_of_ones_own_sorts_completions(working_directory, capsys):
    Path("own_models.py").write_text(
        "class FirstLetter:\n    threshold = 0.5\n"
        "    def score_pairs(self, pairs, prompts=None):\n        return [float(a[0] == b[0]) for a, b in pairs]\n"
    )
    write_lines(Path("rows.jsonl"), [{"prompt": "p", "generations": ["ape", "ant", "bee", "apple"]}])
    cli.main(
        ["evaluate", "noveltybench", "--input", "rows.jsonl", "--partition_model", "own_models.FirstLetter", "--json"]
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary["mean_distinct"] == 2 and summary["settings"]["partition_model"] == "own_models.FirstLetter"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_threshold": 1.5}, r"lies in \[0, 1\]"),
        ({"judge_base_url": "http://a"}, "go together"),
        ({**JUDGE, "partition_server_urls": ["http://a"]}, "not both"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        PartitionModelArguments(**options)
