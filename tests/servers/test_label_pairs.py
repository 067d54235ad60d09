# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity label-pairs` against a real server of a tiny model, which never gives a verdict."""

import json

import pytest

from trl_diversity.classifiers.pairs import PairColumns, checked_pairs
from trl_diversity.evaluation.journal import read_rows
from trl_diversity.scripts import label_pairs


@pytest.mark.parametrize("unparsable", ["different", "error"])
def test_a_chat_server_labels_pairs(generation_server, tmp_path, capsys, unparsable):
    pairs, output = tmp_path / "pairs.jsonl", tmp_path / "labelled.jsonl"
    rows = [{"prompt": "p", "generation_0": f"cat {index}", "generation_1": "dog"} for index in range(5)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--input", str(pairs), "--output", str(output), "--base_url", f"{generation_server}/v1"]
    arguments += ["--model", "policy", "--prompt", "{first}? {second}?", "--yes_means", "same", "--max_tokens", "8"]
    if unparsable == "error":
        with pytest.raises(SystemExit, match="no verdict"):
            label_pairs.run([*arguments, "--unparsable", unparsable])
        return
    label_pairs.run([*arguments, "--unparsable", unparsable])
    labelled = checked_pairs(read_rows(output), str(output), PairColumns())
    assert [pair.similar for pair in labelled] == [0] * 5
    assert "'unparsable_verdicts': 5" in capsys.readouterr().out
