# SPDX-License-Identifier: Apache-2.0
"""Scores of pair classifiers, against transformers' own forward pass."""

import random
import threading

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.tiny import save_tiny_pair_classifier
from trl_diversity.diversity.groups import CompletionGroup
from trl_diversity.diversity.measures import PartitionDiversity
from trl_diversity.equivalence import CrossEncoderEquivalence


PAIRS = [
    ("the cat is blue", "it is a dog"),
    ("no", "yes"),
    ("river " * 12, "green"),
    ("a", "word " * 30),
    ("It is the answer.", "42 is not it!"),
    ("", "cat"),
    ("dog", "dog"),
    ("the river is blue and green", "the river is green and blue"),
]


def logits_by_hand(path, pairs):
    """One pair at a time through transformers, `(len(pairs), labels)`."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    with torch.no_grad():
        return torch.cat([model(**tokenizer(*pair, return_tensors="pt")).logits for pair in pairs])


def watch_shapes(equivalence):
    """List that fills with the shape of every batch the model is given."""
    shapes = []
    equivalence.cross_encoder.register_forward_pre_hook(
        lambda module, args: shapes.append(tuple(args[0]["input_ids"].shape))
    )
    return shapes


@pytest.fixture
def two_labels(pair_classifier_path):
    return CrossEncoderEquivalence(pair_classifier_path, threshold=0.5, device="cpu")


@pytest.fixture
def one_label(pair_classifier_one_label_path):
    return CrossEncoderEquivalence(pair_classifier_one_label_path, threshold=0.5, device="cpu")


def test_two_labels_give_the_probability_of_label_1(two_labels, pair_classifier_path):
    """FC-145."""
    exponentials = logits_by_hand(pair_classifier_path, PAIRS).exp()
    expected = (exponentials[:, 1] / exponentials.sum(dim=1)).tolist()
    assert two_labels.score_pairs(PAIRS) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.05  # a constant would prove nothing


def test_one_label_gives_the_sigmoid_of_its_logit(one_label, pair_classifier_one_label_path):
    """FC-145."""
    logits = logits_by_hand(pair_classifier_one_label_path, PAIRS)[:, 0]
    expected = (1 / (1 + (-logits).exp())).tolist()
    assert one_label.score_pairs(PAIRS) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.05


@pytest.mark.parametrize("fixture", ["one_label", "two_labels"])
def test_scores_are_one_plain_float_a_pair(fixture, request):
    """FC-145: the same shape for either label count."""
    scores = request.getfixturevalue(fixture).score_pairs([("a", "b"), ("c", "d")])
    assert [type(score) for score in scores] == [float, float]
    assert all(0 <= score <= 1 for score in scores)


def test_no_pairs_give_no_scores(two_labels):
    assert two_labels.score_pairs([]) == []


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_scores_do_not_change_with_batch_size_or_company(two_labels, pair_classifier_path, batch_size):
    other = CrossEncoderEquivalence(pair_classifier_path, 0.5, batch_size=batch_size, device="cpu")
    order = random.Random(0).sample(range(len(PAIRS)), len(PAIRS))
    expected = two_labels.score_pairs(PAIRS)
    shuffled = other.score_pairs([PAIRS[index] for index in order])
    assert shuffled == pytest.approx([expected[index] for index in order], abs=1e-5)


def test_batch_size_is_the_number_of_pairs_per_forward_pass(pair_classifier_path):
    equivalence = CrossEncoderEquivalence(pair_classifier_path, 0.5, batch_size=3, device="cpu")
    rows = watch_shapes(equivalence)
    equivalence.score_pairs(PAIRS)
    assert [batch for batch, _ in rows] == [3, 3, 2]
    lengths = [length for _, length in rows]
    assert lengths == sorted(lengths, reverse=True)


def test_by_default_a_batch_on_a_cpu_has_at_most_512_tokens(two_labels):
    shapes = watch_shapes(two_labels)
    two_labels.score_pairs([("word " * 20, "cat " * 20)] * 30)  # 43 tokens each
    assert shapes == [(11, 43), (11, 43), (8, 43)]


def test_several_threads_give_the_scores_of_one_and_leave_torch_s_number_alone(two_labels):
    pairs = [(f"{first} {index}", second) for index in range(20) for first, second in PAIRS]
    expected = two_labels.score_pairs(pairs)
    seen = set()
    two_labels.cross_encoder.register_forward_pre_hook(
        lambda module, args: seen.add((threading.current_thread().name, torch.get_num_threads()))
    )
    before = torch.get_num_threads()
    try:
        for num_threads in (2, 3):
            torch.set_num_threads(num_threads)
            assert two_labels.score_pairs(pairs) == pytest.approx(expected, abs=1e-6)
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 1
    assert {cores for _, cores in seen} == {1}
    assert two_labels.score_pairs(pairs) == expected


def test_an_identity_activation_still_gives_a_probability(one_label, pair_classifier_one_label_path):
    model = CrossEncoder(pair_classifier_one_label_path, activation_fn=torch.nn.Identity(), device="cpu")
    assert CrossEncoderEquivalence(model, 0.5).score_pairs(PAIRS) == one_label.score_pairs(PAIRS)


def test_another_activation_of_the_checkpoint_is_used_instead_of_the_sigmoid(pair_classifier_one_label_path, tmp_path):
    model = CrossEncoder(pair_classifier_one_label_path, activation_fn=torch.nn.Hardsigmoid(), device="cpu")
    model.save_pretrained(str(tmp_path), create_model_card=False)
    logits = logits_by_hand(pair_classifier_one_label_path, PAIRS)[:, 0]
    expected = (logits / 6 + 0.5).clamp(0, 1).tolist()
    assert CrossEncoderEquivalence(str(tmp_path), 0.5, device="cpu").score_pairs(PAIRS) == pytest.approx(
        expected, abs=1e-5
    )


def test_both_orders_average_the_two_scores(two_labels, pair_classifier_path):
    """FC-153."""
    both = CrossEncoderEquivalence(pair_classifier_path, 0.5, both_orders=True, device="cpu")
    forward = two_labels.score_pairs(PAIRS)
    backward = two_labels.score_pairs([(second, first) for first, second in PAIRS])
    assert max(abs(one - other) for one, other in zip(forward, backward, strict=True)) > 0.01
    expected = [(one + other) / 2 for one, other in zip(forward, backward, strict=True)]
    assert both.score_pairs(PAIRS) == pytest.approx(expected, abs=1e-6)


def test_with_both_orders_a_shuffled_group_gets_the_same_clusters(pair_classifier_path):
    """FC-153: the mean of both orders claims symmetry, so a permuted group must be partitioned alike."""
    texts = list(dict.fromkeys(text for pair in PAIRS for text in pair if text))
    probe = CrossEncoderEquivalence(pair_classifier_path, 0.5, both_orders=True, device="cpu")
    scores = sorted(probe.score_pairs([(one, other) for one in texts for other in texts if one < other]))
    threshold = (scores[-4] + scores[-3]) / 2
    measure = PartitionDiversity(probe, threshold=threshold)
    (expected,) = measure([CompletionGroup("", texts)])
    assert expected.labels is not None and 1 < len(set(expected.labels)) < len(texts)
    order = random.Random(1).sample(range(len(texts)), len(texts))
    (shuffled,) = measure([CompletionGroup("", [texts[index] for index in order])])
    assert shuffled.scores == [expected.scores[index] for index in order]


def test_texts_that_differ_beyond_the_limit_are_counted_and_said_once(two_labels, caplog):
    """FC-147: what is not read cannot be compared; it is counted and logged."""
    long_yes, long_no = "word " * 400 + "yes", "word " * 400 + "no"
    scores = two_labels.score_pairs([(long_yes, long_no), (long_yes, long_yes), ("cat", "dog")])
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    two_labels.score_pairs([(long_yes, "cat")])
    assert two_labels.pop_statistics() == {"truncated_pairs": 3}
    assert two_labels.pop_statistics() == {"truncated_pairs": 0}
    assert len([record for record in caplog.records if "diversity_text" in record.message]) == 1


def test_what_differs_within_each_side_s_half_is_seen(two_labels):
    """FC-147: a difference at the end of a short second text survives a first text that fills the model alone."""
    long_text = "word " * 400
    yes, no = two_labels.score_pairs([(long_text, "the answer is yes"), (long_text, "the answer is no")])
    assert abs(yes - no) > 1e-4


def test_max_side_tokens_changes_what_is_compared(pair_classifier_path):
    equivalence = CrossEncoderEquivalence(pair_classifier_path, 0.5, max_side_tokens=2, device="cpu")
    scores = equivalence.score_pairs([("the cat yes", "a dog"), ("the cat no", "a dog"), ("the cat", "a dog")])
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-6)
    assert equivalence.pop_statistics() == {"truncated_pairs": 2}


def test_both_orders_count_a_cut_pair_once(pair_classifier_path):
    equivalence = CrossEncoderEquivalence(pair_classifier_path, 0.5, both_orders=True, device="cpu")
    equivalence.score_pairs([("word " * 400, "cat")])
    assert equivalence.pop_statistics() == {"truncated_pairs": 1}


def test_the_maximum_length_is_restored_on_reload(tmp_path):
    """FC-149."""
    path = save_tiny_pair_classifier(tmp_path / "a", max_length=128)
    model = CrossEncoder(path, max_length=64, device="cpu")
    model.save_pretrained(str(tmp_path / "b"), create_model_card=False)
    reloaded = CrossEncoderEquivalence(str(tmp_path / "b"), 0.5, device="cpu")
    assert reloaded.max_length == 64
    shapes = watch_shapes(reloaded)
    reloaded.score_pairs([("word " * 400, "cat " * 400)])
    assert shapes == [(1, 63)]  # an odd token is left over


def test_over_long_pairs_do_not_run_past_the_position_table(pair_classifier_path, tmp_path):
    """FC-149: a tokenizer without a limit of its own."""
    tokenizer = AutoTokenizer.from_pretrained(pair_classifier_path)
    tokenizer.model_max_length = int(1e30)
    AutoModelForSequenceClassification.from_pretrained(pair_classifier_path).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    equivalence = CrossEncoderEquivalence(str(tmp_path), 0.5, device="cpu")
    assert equivalence.max_length == 128
    assert len(equivalence.score_pairs([("word " * 400, "cat " * 400)])) == 1


@pytest.mark.parametrize(("num_labels", "settings"), [(2, {"temperature": 4.0}), (1, {"temperature": 4.0})])
def test_the_temperature_of_the_checkpoint_divides_its_logits(num_labels, settings, tmp_path):
    path = save_tiny_pair_classifier(tmp_path, num_labels=num_labels, trl_diversity=settings)
    logits = logits_by_hand(path, PAIRS) / 4
    expected = logits.softmax(dim=1)[:, 1] if num_labels == 2 else logits[:, 0].sigmoid()
    assert CrossEncoderEquivalence(path, 0.5, device="cpu").score_pairs(PAIRS) == pytest.approx(
        expected.tolist(), abs=1e-5
    )


def test_the_threshold_is_the_argument_else_the_checkpoint_s_else_a_half(tmp_path, pair_classifier_path, caplog):
    path = save_tiny_pair_classifier(tmp_path, trl_diversity={"threshold": 0.42})
    assert CrossEncoderEquivalence(path, 0.3, device="cpu").threshold == 0.3
    assert CrossEncoderEquivalence(path, device="cpu").threshold == 0.42
    assert "no threshold" not in caplog.text
    assert CrossEncoderEquivalence(pair_classifier_path, device="cpu").threshold == 0.5
    assert "no threshold of its own: 0.5 is used" in caplog.text


def test_dtype_and_device_are_used_for_names_and_for_loaded_models(two_labels, pair_classifier_path):
    assert two_labels.dtype is torch.float32
    by_name = CrossEncoderEquivalence(pair_classifier_path, 0.5, device="cpu", dtype="bfloat16")
    loaded = CrossEncoderEquivalence(CrossEncoder(pair_classifier_path, device="cpu"), 0.5, dtype=torch.bfloat16)
    for equivalence in (by_name, loaded):
        assert equivalence.dtype is torch.bfloat16
        assert equivalence.score_pairs(PAIRS) == pytest.approx(two_labels.score_pairs(PAIRS), abs=0.05)
    meta = CrossEncoderEquivalence(CrossEncoder(pair_classifier_path, device="cpu"), 0.5, device="meta")
    assert meta.device.type == "meta"


def test_a_loaded_model_in_training_mode_is_scored_without_dropout_or_gradient(two_labels, pair_classifier_path):
    model = CrossEncoder(pair_classifier_path, device="cpu")
    equivalence = CrossEncoderEquivalence(model, 0.5)
    model.train()
    assert equivalence.score_pairs(PAIRS) == two_labels.score_pairs(PAIRS)
    assert not model.training
