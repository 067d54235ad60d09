# SPDX-License-Identifier: Apache-2.0
"""Data sets of the training commands: where they come from, and the form of their prompts."""

import logging
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from tests.scripts.conftest import write_lines
from trl_diversity.scripts.training import TrainingScriptArguments
from trl_diversity.scripts.training_data import is_local, load_splits, prepare_prompts


SYSTEM = "Put the answer in <answer> tags."


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))


def rows(prefix: str, n: int = 3) -> list[dict[str, Any]]:
    return [{"prompt": f"{prefix} {i}?", "answer": str(i)} for i in range(n)]


def load(with_eval: bool = False, **values: Any) -> tuple[Any, Any]:
    return load_splits(TrainingScriptArguments(**values), with_eval)


def prompts(dataset: Any) -> list[Any]:
    return [row["prompt"] for row in dataset]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("streaming", [False, True])
def test_one_file(tmp_path, suffix, streaming):
    path = str(tmp_path / f"some.data.{suffix}")
    data = Dataset.from_list(rows("a"))
    data.to_parquet(path) if suffix == "parquet" else data.to_json(path)
    train, test = load(dataset_name=path, dataset_streaming=streaming)
    assert list(train) == rows("a") and test is None
    assert isinstance(train, Dataset) is not streaming


def test_pattern_of_files_in_order_of_names(tmp_path):
    for name in ("b", "a"):
        write_lines(tmp_path / f"train-{name}.jsonl", rows(name, 2))
    train, _ = load(dataset_name=str(tmp_path / "train-*.jsonl"))
    assert prompts(train) == ["a 0?", "a 1?", "b 0?", "b 1?"]


def test_directory_with_both_splits(tmp_path):
    write_lines(tmp_path / "train.jsonl", rows("a"))
    write_lines(tmp_path / "test.jsonl", rows("b", 2))
    train, test = load(True, dataset_name=str(tmp_path))
    assert prompts(train) == ["a 0?", "a 1?", "a 2?"] and prompts(test) == ["b 0?", "b 1?"]
    train, test = load(True, dataset_name=str(tmp_path), dataset_train_split="test", dataset_test_split="train[:1]")
    assert prompts(train) == ["b 0?", "b 1?"] and prompts(test) == ["a 0?"]


@pytest.mark.parametrize("streaming", [False, True])
def test_directory_saved_to_disk(tmp_path, streaming):
    path = str(tmp_path / "saved")
    DatasetDict(train=Dataset.from_list(rows("a")), test=Dataset.from_list(rows("b"))).save_to_disk(path)
    train, test = load(True, dataset_name=path, dataset_streaming=streaming)
    assert list(train) == rows("a") and list(test) == rows("b")
    with pytest.raises(ValueError, match="no split 'validation', which `dataset_test_split` names"):
        load(True, dataset_name=path, dataset_test_split="validation")


def test_separate_file_for_evaluation(tmp_path):
    write_lines(tmp_path / "a.jsonl", rows("a"))
    write_lines(tmp_path / "b.jsonl", rows("b"))
    files = {"dataset_name": str(tmp_path / "a.jsonl"), "eval_dataset_name": str(tmp_path / "b.jsonl")}
    train, test = load(True, **files, dataset_train_split="train[1:]", dataset_test_split="test[:2]")
    assert prompts(train) == ["a 1?", "a 2?"] and prompts(test) == ["b 0?", "b 1?"]
    assert load(False, **files)[1] is None


def test_evaluation_without_data_for_it_is_an_error(tmp_path):
    """The training data is never what a run is evaluated on unasked."""
    write_lines(tmp_path / "train.jsonl", rows("a"))
    with pytest.raises(ValueError, match="`eval_dataset_name`"):
        load(True, dataset_name=str(tmp_path / "train.jsonl"))
    for streaming in (False, True):
        with pytest.raises(ValueError, match="no split 'test', which `dataset_test_split` names.*'train'"):
            load(True, dataset_name=str(tmp_path), dataset_streaming=streaming)
    assert load(False, dataset_name=str(tmp_path))[1] is None


def test_missing_data(tmp_path):
    with pytest.raises(ValueError, match="`dataset_name` is missing"):
        load()
    for name in ("absent.jsonl", "absent-*.parquet"):
        with pytest.raises(FileNotFoundError, match=name.replace("*", r"\*")):
            load(dataset_name=str(tmp_path / name))
    with pytest.raises(ValueError, match="empty"):
        prepare_prompts(Dataset.from_dict({"prompt": []}), TrainingScriptArguments())


@pytest.mark.parametrize("streaming", [False, True])
def test_questions_and_answers_need_one_argument(tmp_path, streaming):
    """FC-046: plain question and answer pairs become prompts with a format instruction."""
    write_lines(tmp_path / "qa.jsonl", [{"question": "Capital of France?", "answer": "Paris"}])
    train, _ = load(
        dataset_name=str(tmp_path / "qa.jsonl"),
        dataset_streaming=streaming,
        prompt_column="question",
        system_prompt=SYSTEM,
    )
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Capital of France?"}]
    assert list(train) == [{"prompt": messages, "answer": "Paris"}]


def test_prompt_column_that_is_not_there(tmp_path):
    write_lines(tmp_path / "qa.jsonl", [{"question": "Capital of France?", "answer": "Paris"}])
    with pytest.raises(ValueError, match="no column 'prompt', but 'question', 'answer'.*`prompt_column`"):
        load(dataset_name=str(tmp_path / "qa.jsonl"))
    with pytest.raises(ValueError, match="holds 3: a prompt is a text or a list of messages"):
        prepare_prompts(Dataset.from_list([{"prompt": 3}]), TrainingScriptArguments())


def test_prompt_column_goes_before_a_column_named_prompt(caplog):
    dataset = Dataset.from_list([{"prompt": "template", "question": "1+1?"}])
    with caplog.at_level(logging.WARNING):
        prepared = prepare_prompts(dataset, TrainingScriptArguments(prompt_column="question"))
    assert list(prepared) == [{"prompt": "1+1?"}]
    assert "'prompt' is dropped" in caplog.text


def test_system_prompt():
    """FC-038: it reaches plain prompts as a message, and a conversation that has its own gets no second one."""
    arguments = TrainingScriptArguments(system_prompt=SYSTEM)
    system, user = {"role": "system", "content": SYSTEM}, {"role": "user", "content": "1+1?"}
    own = {"role": "system", "content": "Be brief."}
    plain = Dataset.from_list([{"prompt": "1+1?"}])
    assert prompts(prepare_prompts(plain, arguments)) == [[system, user]]
    assert prompts(prepare_prompts(plain, TrainingScriptArguments())) == ["1+1?"]
    turns = [user, {"role": "assistant", "content": "2"}, user]
    chat = Dataset.from_list([{"prompt": [user]}, {"prompt": [own, user]}, {"prompt": turns}])
    assert prompts(prepare_prompts(chat, arguments)) == [[system, user], [own, user], [system, *turns]]
    assert prompts(prepare_prompts(chat.to_iterable_dataset(), arguments))[1] == [own, user]


def test_system_prompt_before_contents_of_parts():
    part = {"type": "text", "text": "1+1?"}
    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": [part]}]}])
    prepared = prompts(prepare_prompts(dataset, TrainingScriptArguments(system_prompt=SYSTEM)))[0]
    assert prepared[0] == {"role": "system", "content": [{"type": "text", "text": SYSTEM}]}
    assert prepared[1] == {"role": "user", "content": [part]}


def test_doubled_braces_are_reported(caplog):
    """FC-073: braces doubled for `str.format` are what the model would see."""
    dataset = Dataset.from_list([{"prompt": "1+1?"}])
    with caplog.at_level(logging.WARNING):
        prepare_prompts(dataset, TrainingScriptArguments(system_prompt="Use \\boxed{}."))
        assert not caplog.text
        prepare_prompts(dataset, TrainingScriptArguments(system_prompt="Use \\boxed{{}}."))
    assert "doubled braces" in caplog.text


def test_local_names(tmp_path, monkeypatch):
    """FC-066: what the card must not name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("train.jsonl", "/data/train.jsonl", "data", str(tmp_path), "data/train-*.parquet"):
        assert is_local(name), name
    for name in ("trl-lib/tldr", "imdb", "agentica-org/DeepScaleR-Preview-Dataset"):
        assert not is_local(name), name
