# SPDX-License-Identifier: Apache-2.0
"""Another model scores, in its own tokens."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests import tiny
from tests.likelihood import tokenizers
from tests.likelihood.scoring import assert_scores, one_at_a_time, policy, policy_tokenizer, rows
from trl_diversity.likelihood.frozen_scorer import FrozenScorer
from trl_diversity.likelihood.scorers import Scorer
from trl_diversity.likelihood.splice import baseline_row, prepare_completion
from trl_diversity.likelihood.token_text import decode


def frozen_model(tokenizer):
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        initializer_range=0.4,
    )  # fmt: skip
    with tiny.seeded(9):
        return LlamaForCausalLM(config).eval()


def test_the_same_tokenizer_takes_the_ids_as_they_are():
    model = policy("qwen2")
    scorer = FrozenScorer(model, policy_tokenizer(), policy_tokenizer())
    assert isinstance(scorer, Scorer)
    assert_scores(scorer.score(rows()), model, rows())


@pytest.mark.parametrize("make", [tokenizers.merging_bpe, tokenizers.metaspace_bpe, tokenizers.gpt_bpe])
def test_another_tokenizer_scores_the_same_text(make):
    tokenizer = make()
    model = frozen_model(tokenizer)
    scores = FrozenScorer(model, tokenizer, policy_tokenizer()).score(rows())
    for found, row in zip(scores, rows(), strict=True):
        prefix = tokenizer.encode(decode(row.prefix_ids, policy_tokenizer()), add_special_tokens=False)
        for probabilities, text in ((found.answer, row.answer), (found.reference, row.reference)):
            # The slow way: of all cuts of the text that follow the prefix, the tokenizer's own.
            whole = continued(tokenizer, prefix, row.joining + text + row.closing)
            counts = range(len(whole) + 1)
            first = max(n for n in counts if row.joining.startswith(spelled(tokenizer, prefix, whole[:n])))
            last = min(n for n in counts if spelled(tokenizer, prefix, whole[:n]).startswith(row.joining + text))
            expected = one_at_a_time(model, prefix, whole[:last], lead=first)
            assert probabilities == pytest.approx(expected, abs=1e-5, rel=1e-3)


def continued(tokenizer, prefix, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    if spelled(tokenizer, prefix, ids) == text:
        return ids
    return tokenizer.encode(">" + text, add_special_tokens=False)[
        len(tokenizer.encode(">", add_special_tokens=False)) :
    ]


def spelled(tokenizer, prefix, ids):
    return decode([*prefix, *ids], tokenizer)[len(decode(prefix, tokenizer)) :]


def prepared(reference="42"):
    tokenizer = policy_tokenizer()
    ids = tokenizer.encode("<think>a</think><answer>42</answer>", add_special_tokens=False)
    return prepare_completion(tokenizer.encode("2+2?"), ids, reference, tokenizer).row


def test_a_row_that_does_not_fit_is_too_long():
    tokenizer = tokenizers.gpt_bpe()
    model = frozen_model(tokenizer)
    whole = FrozenScorer(model, tokenizer, policy_tokenizer()).score([prepared()])[0]
    needed = len(tokenizer.encode("2+2?<think>a</think><answer>42"))
    for limit, reason in ((needed, None), (needed - 1, "too_long")):
        scores = FrozenScorer(model, tokenizer, policy_tokenizer(), max_length=limit).score([prepared(), prepared()])
        assert [score.malformed for score in scores] == [reason] * 2
        assert scores[0].reference == (pytest.approx(whole.reference) if reason is None else ())


def test_what_its_tokenizer_cannot_spell_is_unencodable():
    tokenizer = tokenizers.metaspace_unigram()
    scores = FrozenScorer(frozen_model(tokenizer), tokenizer, policy_tokenizer()).score([prepared("ж"), prepared()])
    assert [score.malformed for score in scores] == ["unencodable", None]
    assert scores[1].reference


def test_a_baseline_row_has_a_reference_only():
    row = baseline_row(policy_tokenizer().encode("2+2?"), "42", policy_tokenizer())
    tokenizer = tokenizers.gpt_bpe()
    score = FrozenScorer(frozen_model(tokenizer), tokenizer, policy_tokenizer()).score([row])[0]
    assert score.answer == ()
    assert len(score.reference) == len(tokenizer.encode("42"))


def test_options_reach_the_scorer():
    asked = []
    tokenizer = policy_tokenizer()
    scorer = FrozenScorer(
        policy(), tokenizer, tokenizer, path="two_pass", agree_on_max=lambda value: asked.append(value) or value
    )
    scorer.score(rows()[:2])
    assert asked == [1]
