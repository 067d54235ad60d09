# SPDX-License-Identifier: Apache-2.0
"""The policy's scores: one pass, two passes and one sequence at a time give the same numbers."""

from contextlib import contextmanager

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration
from trl.trainer.utils import add_fused_lm_head

from tests.likelihood.scoring import assert_close, assert_scores, one_at_a_time, policy, rows, with_lora
from trl_diversity.likelihood.rewards import aggregate
from trl_diversity.likelihood.scorers import PolicyScorer, Scorer
from trl_diversity.likelihood.splice import ScoringRow


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("path", ["fast", "two_pass"])
def test_paths_equal_one_sequence_at_a_time(architecture, tied, lora, path):
    model = policy(architecture, tied)
    if lora:
        model = with_lora(model)
    scorer = PolicyScorer(model, path=path)
    assert isinstance(scorer, Scorer)
    assert_scores(scorer.score(rows()), model, rows())
    assert scorer.is_fast is (path == "fast")


def test_batches_of_every_size_give_the_same_scores():
    model = policy()
    expected = PolicyScorer(model, path="two_pass", tokens_per_forward=1).score(rows())
    for size in range(1, 17):
        for path in ("fast", "two_pass"):
            for budget in (300, 10**6):
                scores = PolicyScorer(model, path=path, tokens_per_forward=budget).score(rows()[:size])
                for found, right in zip(scores, expected[:size], strict=True):
                    assert_close(found.answer, right.answer)
                    assert_close(found.reference, right.reference)


def test_a_reference_that_saw_the_answer_would_not_pass_for_equal():
    model = policy()
    for row in rows()[:4]:
        alone = one_at_a_time(model, row.prefix_ids, row.reference_ids, row.reference_lead)
        seen = one_at_a_time(model, row.prefix_ids + row.answer_ids, row.reference_ids, row.reference_lead)
        with pytest.raises(AssertionError):
            assert_close(alone, seen)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_implementations_and_half_precision(attention, dtype):
    model = policy(attn_implementation=attention).to(dtype)
    scorer = PolicyScorer(model)
    scores = scorer.score(rows())
    assert scorer.is_fast
    assert_scores(scores, model, rows(), tolerance=1e-4 if dtype == torch.float32 else 0.1)


def test_logits_become_float32_before_the_softmax():
    model = policy().to(torch.bfloat16)
    row = ScoringRow((5,), (7,))
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([[5]])).logits[0, 0]
    assert logits.dtype == torch.bfloat16
    right = torch.softmax(logits.double(), -1)[7].item()
    found = PolicyScorer(model, path="two_pass").score([row])[0].answer[0]
    # In bfloat16 the probability itself would be rounded to about 0.4 %.
    assert found == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_fused_head_of_trl_is_not_used(lora):
    model = policy()
    if lora:
        model = with_lora(model)
    expected = PolicyScorer(model).score(rows())
    add_fused_lm_head(model.get_base_model() if lora else model, temperature=0.3)
    assert PolicyScorer(model, path="fast").score(rows()) == expected
    for found, right in zip(PolicyScorer(model, path="two_pass").score(rows()), expected, strict=True):
        assert_close(found.reference, right.reference)


def test_gradient_checkpointing_and_training_mode_change_nothing():
    model = with_lora(policy(attention_dropout=0.5))
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    model.train()
    scores = PolicyScorer(model).score(rows())
    assert_scores(scores, model, rows())
    assert model.is_gradient_checkpointing
    assert all(value is None for value in (parameter.grad for parameter in model.parameters()))


def modes(model):
    return [module.training for module in model.modules()]


def test_modes_are_restored_module_by_module():
    model = policy(attention_dropout=0.5).train()
    model.model.layers[0].eval()
    before = modes(model)
    assert len(set(before)) == 2
    assert_scores(PolicyScorer(model).score(rows()[:2]), policy(), rows()[:2])
    assert modes(model) == before


def test_modes_are_restored_after_an_exception(monkeypatch):
    model = policy().train()
    scorer = PolicyScorer(model, path="two_pass")
    monkeypatch.setattr(model, "forward", lambda **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scorer.score(rows()[:2])
    assert all(modes(model))
    assert torch.is_grad_enabled()


def peft_with_reference():
    """A policy with a trained adapter and, as in TRL, another one that holds the policy as it was."""
    model = with_lora(policy())
    model.add_adapter("ref", model.peft_config["default"])
    return model


def test_the_reference_adapter_is_never_scored():  # FC-062
    model = peft_with_reference()
    expected = PolicyScorer(model).score(rows())
    trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    model.set_adapter("ref")
    next(parameter for parameter in model.parameters() if parameter.requires_grad).requires_grad_(False)
    left = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert left != trainable
    assert PolicyScorer(model).score(rows()) == expected
    # The caller's choice stays.
    assert model.active_adapter == "ref"
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == left


def test_an_adapter_can_be_named():
    model = peft_with_reference()
    named = PolicyScorer(model, adapter_name="ref").score(rows())
    assert named != PolicyScorer(model).score(rows())
    assert model.active_adapter == "default"
    model.set_adapter("ref")
    assert_scores(named, model, rows())


def test_an_unknown_adapter_is_an_error():
    with pytest.raises(ValueError, match=r"\['default', 'ref'\]"):
        PolicyScorer(peft_with_reference(), adapter_name="other").score(rows())
    with pytest.raises(ValueError, match="no adapters"):
        PolicyScorer(policy(), adapter_name="other").score(rows())


@pytest.mark.parametrize("path", ["fast", "two_pass"])
def test_scores_that_are_not_finite_are_nan_in_their_row_only(path):
    model = policy(tied=False)
    broken = 60
    with torch.no_grad():
        model.get_input_embeddings().weight[broken] = float("nan")
    clean = [row for row in rows() if broken not in {*row.prefix_ids, *row.answer_ids, *row.reference_ids}]
    mixed = [ScoringRow((broken, *clean[0].prefix_ids), (5, 6), (7,)), *clean]
    scores = PolicyScorer(model, path="two_pass" if path == "two_pass" else "auto").score(mixed)
    assert all(value != value for value in (*scores[0].answer, *scores[0].reference))
    assert_scores(scores[1:], model, clean)


@pytest.mark.parametrize("path", ["fast", "two_pass"])
def test_empty_continuations_are_not_scored(path):  # FC-097
    model = policy()
    mixed = [
        ScoringRow((5, 6), (7, 8), (9, 10, 11)),
        ScoringRow((5, 6, 7), (), ()),
        ScoringRow((5, 6, 7, 8), (), (9, 10, 11, 12, 13)),
        ScoringRow((5,), (6,), ()),
    ]
    scores = PolicyScorer(model, path=path).score(mixed)
    assert_scores(scores, model, mixed)
    assert (scores[1].answer, scores[1].reference) == ((), ())
    assert PolicyScorer(model, path=path).score([]) == []


def test_the_mean_is_over_the_reference_alone():  # FC-095
    model = policy()
    row = ScoringRow((5, 6, 7, 8), (), (9, 10, 11), reference_lead=1)
    score = PolicyScorer(model).score([row])[0].reference
    assert len(score) == 2
    expected = one_at_a_time(model, (5, 6, 7, 8, 9), (10, 11))
    assert aggregate(score) == pytest.approx(sum(expected) / 2, abs=1e-6)


def test_the_model_can_be_assigned_anew():
    scorer = PolicyScorer(policy())
    scorer.score(rows()[:1])
    assert scorer.is_fast
    other = policy("qwen2")
    scorer.model = other
    assert scorer.is_fast is None
    assert_scores(scorer.score(rows()), other, rows())


def test_every_forward_call_runs_in_the_given_context():
    entered = []

    @contextmanager
    def context():
        entered.append(True)
        yield

    scorer = PolicyScorer(policy(), path="two_pass", tokens_per_forward=10**6, forward_context=context)
    scorer.score(rows())
    assert len(entered) == 1


def test_autocast_reaches_the_fast_path():
    model = policy()
    scorer = PolicyScorer(model, forward_context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert_scores(scorer.score(rows()), model, rows(), tolerance=0.2)
    assert scorer.is_fast


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"path": "slow"}, "auto, fast, two_pass"), ({"tokens_per_forward": 0}, "tokens_per_forward=0")],
)
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        PolicyScorer(policy(), **arguments)


def test_an_encoder_decoder_is_no_policy():
    config = T5Config(vocab_size=30, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="encoder-decoder"):
        PolicyScorer(T5ForConditionalGeneration(config))


def test_a_row_without_prefix_is_an_error():
    with pytest.raises(ValueError, match="row 1 has no prefix_ids"):
        PolicyScorer(policy()).score([ScoringRow((5,), (6,)), ScoringRow((), (6,))])
