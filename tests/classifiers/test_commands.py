# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity train-classifier` and `evaluate-classifier`, from the command line to what they leave."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from tests.classifiers.conftest import word_pairs
from trl_diversity.classifiers import cross_validation
from trl_diversity.classifiers.bi_encoder_training import BiEncoderSettings
from trl_diversity.classifiers.cross_encoder_training import CrossEncoderSettings, train_cross_encoder
from trl_diversity.classifiers.cross_validation import (
    compare,
    cross_validate,
    cross_validate_cross_encoder,
    cut_pair,
)
from trl_diversity.classifiers.head_training import HeadSettings
from trl_diversity.classifiers.pairs import folds_by_prompt, load_pairs
from trl_diversity.equivalence import BiEncoderEquivalence, CrossEncoderEquivalence, load_equivalence_model
from trl_diversity.equivalence.embedding import load_sentence_transformer
from trl_diversity.scripts import evaluate_classifier, train_classifier


QUICK = ["--use_cpu", "true", "--short_pairs", "60", "--sure_pairs", "10"]
# Products of embeddings tell the words of one list from those of the other
PRODUCT = ["words", "cosine", "product", "--by_length", "false", "--l2", "3"]

PLAIN = ["--features", "words", "cosine", "--l2", "3"]


def assert_no_path_is_saved(directory, base):
    """No file of a checkpoint names a place on this machine."""
    for path in directory.rglob("*"):
        if path.is_file() and not any(part.startswith("checkpoint-") for part in path.parts):
            content = path.read_bytes()
            assert base.encode() not in content and str(directory.parent).encode() not in content, path


def texts(pairs):
    return [(pair.generation_0, pair.generation_1) for pair in pairs]


def trained(pairs_file, base, output, *options):
    train_classifier.run(
        ["--data", pairs_file, "--output_dir", str(output), "--base_model", base, *QUICK, *options], prog="train"
    )
    return load_equivalence_model(str(output), device="cpu")


@pytest.fixture(scope="module")
def plain_scores(sentence_transformer_path, tmp_path_factory):
    """Scores of a bi-encoder that was trained on `pairs_file` with no more options than these."""
    directory = tmp_path_factory.mktemp("plain")
    data = directory / "pairs.jsonl"
    data.write_text("".join(json.dumps(vars(pair)) + "\n" for pair in word_pairs(80)))
    model = trained(str(data), sentence_transformer_path, directory / "out", *PLAIN)
    return model.score_pairs(texts(word_pairs(8, seed=9)))


@pytest.fixture
def bi_encoder(pairs_file, sentence_transformer_path, tmp_path):
    return trained(pairs_file, sentence_transformer_path, tmp_path / "bi", "--features", *PRODUCT)


def test_a_bi_encoder_learns_repeats_itself_and_tells_its_scores(
    bi_encoder, pairs_file, sentence_transformer_path, tmp_path, capsys
):
    assert isinstance(bi_encoder, BiEncoderEquivalence)
    fresh = word_pairs(60, seed=9)
    scores = bi_encoder.score_pairs(texts(fresh))
    assert roc_auc_score([pair.similar for pair in fresh], scores) > 0.9
    again = trained(pairs_file, sentence_transformer_path, tmp_path / "again", "--features", *PRODUCT)
    assert again.score_pairs(texts(fresh)) == scores
    assert_no_path_is_saved(tmp_path / "bi", sentence_transformer_path)
    card = (tmp_path / "bi" / "README.md").read_text()
    assert "| l2 |" in card and "| seed | 0 |" in card and "threshold" in card
    assert (tmp_path / "bi" / "model.safetensors").stat().st_size < 10_000


def test_an_error_of_the_hub_comes_after_the_classifier_is_saved(pairs_file, sentence_transformer_path, tmp_path):
    """FC-067. The Hub is offline in tests."""
    with pytest.raises(SystemExit) as stopped:
        trained(pairs_file, sentence_transformer_path, tmp_path / "out", *PLAIN, "--push_to_hub", "true")
    assert "not pushed to the Hub: OfflineModeIsEnabled" in str(stopped.value.code)  # a text means status 1
    assert {"config.json", "model.safetensors", "README.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    load_equivalence_model(str(tmp_path / "out"), device="cpu")


@pytest.mark.parametrize("kind", ["bi-encoder", "cross-encoder"])
def test_a_base_that_is_nowhere_is_a_plain_error(pairs_file, tmp_path, kind):
    with pytest.raises(SystemExit, match="train-classifier: error: .*nobody/nothing"):
        trained(pairs_file, "nobody/nothing", tmp_path / "out", "--kind", kind)


@pytest.mark.parametrize(
    "options",
    [
        ["--features", "words"],
        ["--hidden_units", "4"],
        ["--by_length", "false"],
        ["--class_weights", "true"],
        ["--l2", "1000"],
        ["--short_pairs", "0"],
        ["--sure_pairs", "0"],
        ["--tune_epochs", "1", "--learning_rate", "1e-3"],
        ["--seed", "5"],
    ],
)
def test_every_option_of_a_bi_encoder_changes_its_scores(
    plain_scores, pairs_file, sentence_transformer_path, tmp_path, options
):
    changed = trained(pairs_file, sentence_transformer_path, tmp_path / "changed", *PLAIN, *options)
    assert changed.score_pairs(texts(word_pairs(8, seed=9))) != plain_scores


@pytest.mark.parametrize("goal", [["--goal", "f1"], ["--goal", "false_merge_rate", "--false_merge_rate", "0.02"]])
def test_a_goal_moves_the_threshold(pairs_file, sentence_transformer_path, tmp_path, goal):
    shared = ["--features", "words", "--l2", "3"]  # words alone tell the lists badly apart
    plain = trained(pairs_file, sentence_transformer_path, tmp_path / "plain", *shared)
    assert (
        trained(pairs_file, sentence_transformer_path, tmp_path / "goal", *shared, *goal).threshold != plain.threshold
    )


def test_a_yaml_file_trains_a_cross_encoder_with_columns_of_other_names(
    pair_classifier_one_label_path, tmp_path, capsys
):
    rows = [{"x": p.generation_0, "y": p.generation_1, "same": bool(p.similar), "q": p.prompt} for p in word_pairs(80)]
    data = tmp_path / "named.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"kind: cross-encoder\ndata: {data}\nbase_model: {pair_classifier_one_label_path}\ngeneration_0_column: x\n"
        "generation_1_column: y\nlabel_column: same\nprompt_column: q\nuse_cpu: true\nlearning_rate: 2e-3\n"
        "max_side_tokens: 16\ndev_share: 0.3\n"
    )
    train_classifier.run(["--config", str(recipe), "--output_dir", str(tmp_path / "out")], prog="train")
    model = load_equivalence_model(str(tmp_path / "out"), device="cpu")
    assert isinstance(model, CrossEncoderEquivalence)
    assert model.max_length == 2 * 16 + 3
    assert_no_path_is_saved(tmp_path / "out", pair_classifier_one_label_path)
    assert "auc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label_column", "nothing"], "'nothing' is missing"),
        (["--dev_data", "x.jsonl"], "x.jsonl"),
        (["--features", "colour"], "unknown feature groups.*colour"),
    ],
)
def test_what_cannot_be_trained_ends_with_a_plain_message(
    pairs_file, sentence_transformer_path, tmp_path, options, message
):
    """FC-157."""
    with pytest.raises(SystemExit, match=message):
        trained(pairs_file, sentence_transformer_path, tmp_path / "out", *options)


class Letters:
    """A model that is none of ours."""

    threshold = 0.4

    def score_pairs(self, pairs, prompts=None):
        assert len(prompts) == len(pairs)
        return [len(set(one) & set(other)) / max(1, len(set(one) | set(other))) for one, other in pairs]


def test_any_model_is_scored_as_scikit_learn_scores_it(pairs_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluate_classifier, "load_model", lambda args: Letters())
    output, groups = tmp_path / "scores.jsonl", tmp_path / "groups.jsonl"
    groups.write_text(json.dumps({"prompt": "p", "completions": ["ab", "abcd", "cd"]}) + "\n")
    evaluate_classifier.run(
        ["--data", pairs_file, "--json", "true", "--scores_output", str(output), "--groups", str(groups)]
        + ["--resamples", "200"]
    )
    report = json.loads(capsys.readouterr().out)
    pairs = load_pairs(pairs_file)
    labels, scores = [pair.similar for pair in pairs], Letters().score_pairs(texts(pairs), texts(pairs))
    assert report["metrics"]["auc"]["value"] == pytest.approx(roc_auc_score(labels, scores))
    same = np.array(scores) > 0.4
    balanced = report["metrics"]["balanced_accuracy"]
    assert balanced["value"] == pytest.approx(balanced_accuracy_score(labels, same))
    assert balanced["low"] <= balanced["value"] <= balanced["high"]
    assert [json.loads(line)["score"] for line in output.read_text().splitlines()] == scores
    assert report["non_transitivity_rate"] == 1.0  # ab = abcd = cd, but ab is not cd
    evaluate_classifier.run(["--data", pairs_file, "--resamples", "50"])
    assert "balanced_accuracy" in capsys.readouterr().out


def test_a_checkpoint_is_scored_at_its_own_threshold_or_at_a_given_one(bi_encoder, pairs_file, tmp_path, capsys):
    shared = ["--data", pairs_file, "--model", str(tmp_path / "bi"), "--device", "cpu", "--json", "true"]
    reports = []
    capsys.readouterr()
    for options in ([], ["--threshold", "1.0"]):
        evaluate_classifier.run([*shared, "--resamples", "20", *options])
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0]["threshold"] == bi_encoder.threshold
    assert reports[0]["metrics"]["auc"]["value"] > 0.9
    assert reports[1]["metrics"]["recall"]["value"] == 0


def test_cross_validation_never_scores_a_pair_by_a_head_that_saw_its_prompt(sentence_transformer_path):
    """Labels drawn by prompt are beyond prediction: a leak would show as an AUC far above one half."""
    generator = np.random.default_rng(0)
    pairs = word_pairs(60)
    coin = dict.fromkeys(pair.prompt for pair in pairs)
    coin = {prompt: int(generator.random() < 0.5) for prompt in coin}
    noise = [type(pair)(pair.generation_0, pair.generation_1, coin[pair.prompt], pair.prompt) for pair in pairs]
    base = load_sentence_transformer(sentence_transformer_path, "cpu", None, False, None)
    head = HeadSettings(("cosine", "product"), by_length=False)
    settings = BiEncoderSettings(head, short_pairs=0, l2_candidates=(1.0, 9.0), folds=3)
    learned = compare([p.similar for p in pairs], cross_validate(pairs, base, settings, seeds=(0, 1)), 50)
    guessed = compare([p.similar for p in noise], cross_validate(noise, base, settings, seeds=(0, 1)), 50)
    assert learned["head"]["auc"][0] > 0.75 > guessed["head"]["auc"][0]
    assert learned["difference"]["auc"][0] == pytest.approx(learned["head"]["auc"][0] - learned["cosine"]["auc"][0])


def test_the_command_of_cross_validation(pairs_file, sentence_transformer_path, monkeypatch, capsys):
    monkeypatch.setattr("trl_diversity.equivalence.loading.minilm_path", lambda: sentence_transformer_path)
    cross_validation.main([pairs_file, "--seeds", "3"])
    table = json.loads(capsys.readouterr().out)
    assert (table["pairs"], table["seeds"]) == (80, 1)
    assert table["head"]["auc"][0] - table["cosine"]["auc"][0] == pytest.approx(table["difference"]["auc"][0])


def test_cross_encoders_of_folds_are_kept_and_never_see_a_prompt_they_score(
    pair_classifier_one_label_path, tmp_path, monkeypatch
):
    """As above, and folds that the journal holds are not trained again."""
    pairs = word_pairs(60)
    settings = CrossEncoderSettings(
        pair_classifier_one_label_path, max_side_tokens=16, learning_rate=2e-3, num_train_epochs=2, use_cpu=True
    )
    seen = []

    def training(train, dev, directory, chosen, train_plainly=train_cross_encoder):
        seen.append({pair.prompt for pair in (*train, *dev)})
        return train_plainly(train, dev, directory, chosen)

    monkeypatch.setattr("trl_diversity.classifiers.cross_encoder_training.train_cross_encoder", training)
    journal = tmp_path / "folds.jsonl"
    (scores, same), *_ = cross_validate_cross_encoder(pairs, settings, (0,), 0.3, journal)
    labels = np.array([pair.similar for pair in pairs])
    assert roc_auc_score(labels, scores) > 0.75 and same.any() and not same.all()
    prompts = [{pairs[index].prompt for index in fold} for fold in folds_by_prompt(pairs, 5, 0)]
    assert len(seen) == 5 and not any(trained & held_out for trained, held_out in zip(seen, prompts, strict=True))

    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:4]) + "\n")  # stopped after three folds
    (again, same_again), *_ = cross_validate_cross_encoder(pairs, settings, (0,), 0.3, journal)
    assert len(seen) == 7 and np.array_equal(again, scores) and np.array_equal(same_again, same)
    assert str(tmp_path) not in journal.read_text() and pair_classifier_one_label_path not in journal.read_text()
    with pytest.raises(ValueError, match="other pairs or settings"):
        cross_validate_cross_encoder(pairs, replace(settings, max_side_tokens=8), (0,), 0.3, journal)


def test_the_command_of_a_card_names_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pairs.jsonl").touch()
    shown = train_classifier._without_directories(
        ["--data=/home/me/pairs.jsonl", "--dev_data", "../me/dev.jsonl", "--data", "data/pairs.jsonl"]
        + ["--output_dir=~/out/", "--base_model", "owner/base", "--l2", "0.5"]
    )
    assert shown == [
        *("--data=pairs.jsonl", "--dev_data", "dev.jsonl", "--data", "pairs.jsonl"),
        *("--output_dir=out", "--base_model", "owner/base", "--l2", "0.5"),
    ]


def test_a_text_is_cut_after_so_many_tokens(sentence_transformer_path):
    base = load_sentence_transformer(sentence_transformer_path, "cpu", None, False, None)
    pair = word_pairs(1)[0]
    cut = cut_pair(pair, base.tokenizer.backend_tokenizer, 2)
    assert cut.generation_0 == " ".join(pair.generation_0.split()[:2])
    assert cut_pair(pair, base.tokenizer.backend_tokenizer, 6) == pair
