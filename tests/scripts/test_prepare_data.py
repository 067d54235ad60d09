# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity prepare-data` on local copies of the published schemas."""

import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.data.published import conversation, write_wildchat
from tests.scripts.conftest import write_lines
from trl_diversity.scripts.prepare_data import run


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))


def conversations(n: int, seed: int = 0, words: int = 12):
    """A mixture: a tenth is in another language, a tenth toxic, one in twenty repeats an earlier prompt."""
    generator = random.Random(seed)
    for i in range(n):
        text = f"Question {i}: " + " ".join(generator.choices("tell me of a fine tree".split(), k=words))
        if i % 20 == 0:
            text = "Tell me a story."
        yield conversation(text, "German" if i % 10 == 3 else "English", i % 10 == 7)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_wildchat_twice_the_same_bytes(tmp_path, causal_lm_path, capsys):
    write_wildchat(tmp_path / "part-0.parquet", conversations(300), rows_per_group=64)
    write_wildchat(tmp_path / "part-1.parquet", conversations(300, seed=1), rows_per_group=64)
    options = ["--source", str(tmp_path / "part-*.parquet"), "--model", causal_lm_path, "--num_samples", "50"]
    for name in ("a", "b"):
        run(["wildchat", *options, "--max_prompt_tokens", "64", "--output", str(tmp_path / name)])
    assert files(tmp_path / "a") == files(tmp_path / "b")
    run(["wildchat", *options, "--max_prompt_tokens", "64", "--seed", "1", "--output", str(tmp_path / "c")])
    assert files(tmp_path / "c")["train.parquet"] != files(tmp_path / "a")["train.parquet"]

    counts = json.loads((tmp_path / "a" / "counts.json").read_text())
    assert counts["read"] == 600 == sum(counts["dropped"].values()) + counts["not_sampled"] + counts["written"]
    assert counts["written"] == 50 and counts["dropped"]["other language"] == counts["dropped"]["toxic"] == 60
    assert counts["dropped"]["duplicate"] == 29 and counts["dropped"]["too many tokens"] > 0
    rows = pq.read_table(tmp_path / "a" / "train.parquet").to_pylist()
    assert len(rows) == 50 and all(list(row) == ["prompt"] for row in rows)
    assert all(len(row["prompt"][0]["content"]) <= 61 and row["prompt"][0]["role"] == "user" for row in rows)
    assert "written: 50" in capsys.readouterr().out


def test_the_card_tells_how_and_nothing_of_this_machine(tmp_path, causal_lm_path):
    from huggingface_hub import DatasetCard

    write_wildchat(tmp_path / "chats.parquet", conversations(40))
    output = tmp_path / "prepared"
    options = ["--source", str(tmp_path / "chats.parquet"), "--model", causal_lm_path]
    run(["wildchat", *options, "--output", str(output)])
    card = DatasetCard.load(output / "README.md")
    assert card.data.license == "odc-by" and "trl-diversity" in card.data.tags
    assert "dropped: toxic | 4" in card.text and "--seed 0" in card.text and "--max_prompt_tokens 512" in card.text
    for content in files(output).values():
        assert str(tmp_path).encode() not in content and b"/tmp" not in content


def test_what_it_writes_trains(tmp_path, causal_lm_path):
    """As a file and as a directory, whose card names the file."""
    from trl_diversity.scripts.training import TrainingScriptArguments
    from trl_diversity.scripts.training_data import load_splits

    write_wildchat(tmp_path / "chats.parquet", conversations(40))
    output = str(tmp_path / "prepared")
    run(["wildchat", "--source", str(tmp_path / "chats.parquet"), "--model", causal_lm_path, "--output", output])
    for name in (output, f"{output}/train.parquet"):
        train, _ = load_splits(TrainingScriptArguments(dataset_name=name), with_eval=False)
        assert train.column_names == ["prompt"] and train[0]["prompt"][0]["role"] == "user"


def test_deepscaler_and_webinstruct(tmp_path, causal_lm_path):
    pytest.importorskip("math_verify")
    problems = [{"problem": f"What is {i} + 1?", "answer": str(i + 1), "solution": "long"} for i in range(6)]
    problems += [{"problem": "In the figure, find x.", "answer": "1", "solution": ""}]
    write_lines(tmp_path / "deepscaler.jsonl", problems)
    options = ["--model", causal_lm_path, "--output", str(tmp_path / "out")]
    run(["deepscaler", "--source", str(tmp_path / "deepscaler.jsonl"), *options])
    rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert {row["solution"] for row in rows} == {f"${i + 1}$" for i in range(6)}
    assert json.loads((tmp_path / "out" / "counts.json").read_text())["dropped"] == {"needs an image": 1}
    write_lines(tmp_path / "web.jsonl", [{"id": "1", "question": "Why?", "answer": "So.", "category": "x"}])
    run(["webinstruct", "--source", str(tmp_path / "web.jsonl"), *options])
    assert pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()[0]["answer"] == "So."


def test_noveltybench_needs_no_model(tmp_path, shared_data):
    source = str(shared_data / "noveltybench" / "curated.jsonl")
    run(["noveltybench", "--source", source, "--split", "train", "--output", str(tmp_path / "out")])
    rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert len(rows) == 100 and set(rows[0]) == {"prompt", "id"}


def test_wrong_use_is_told(tmp_path, capsys):
    write_lines(tmp_path / "other.jsonl", [{"text": "x"}])
    output = str(tmp_path / "out")
    for words, message in (
        (["wildcat", "--output", output], "wildchat"),
        (["wildchat", "--output", output], "`model` is missing"),
        (["noveltybench", "--num_samples", "-1", "--output", output], "at least 0"),
        (["noveltybench", "--num_sample", "1", "--output", output], "unknown option `--num_sample`"),
    ):
        with pytest.raises(SystemExit):
            run(words)
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="has no column 'id', which noveltybench has, but 'text'"):
        run(["noveltybench", "--source", str(tmp_path / "other.jsonl"), "--output", output])
    assert not Path(output).exists()


@pytest.mark.slow
def test_memory_of_a_long_file(tmp_path, causal_lm_path):
    """200,000 conversations take less than 2 GB, and the same bytes come out twice."""
    write_wildchat(tmp_path / "long.parquet", conversations(200_000, words=60))
    command = [sys.executable, "-m", "trl_diversity.cli", "prepare-data", "wildchat", "--model", causal_lm_path]
    for name in ("a", "b"):
        options = ["--source", str(tmp_path / "long.parquet"), "--output", str(tmp_path / name)]
        subprocess.run([*command, *options], check=True, cwd=ROOT, capture_output=True)
    peak_gb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    assert peak_gb < 2
    assert files(tmp_path / "a") == files(tmp_path / "b")
    counts = json.loads((tmp_path / "a" / "counts.json").read_text())
    assert counts["read"] == 200_000 == sum(counts["dropped"].values()) + counts["not_sampled"] + counts["written"]
    print(f"peak {peak_gb:.2f} GB, {counts}")
