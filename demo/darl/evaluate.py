# SPDX-License-Identifier: Apache-2.0
"""Sample completions from a policy and measure them: likelihood of the reference, exact match, format."""

import re
import statistics
from collections.abc import Sequence
from typing import Any

from demo.darl.questions import messages
from trl_diversity.likelihood import PolicyScorer, aggregate, format_reward, prepare_completion
from trl_diversity.likelihood.token_text import decode


BATCH_SIZE = 64
MEASURES = ("reference_prob", "initial_reference_prob", "answer_prob", "malformed", "exact_match", "format_score")


def evaluate(
    model: Any, tokenizer: Any, questions: list[dict[str, Any]], samples: int, seed: int, **sampling: Any
) -> list[dict[str, Any]]:
    """
    Draw completions and measure every one of them.

    Args:
        model (`PeftModel`):
            The policy, whose weights without the adapter are those from before the training.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer, with a chat template.
        questions (`list[dict]`):
            Rows with `prompt` and `answer`, the reference.
        samples (`int`):
            Completions drawn for every question.
        seed (`int`):
            Seed of the draws. The state of torch's generator is left as it was.
        sampling (`Any`):
            Passed to `generate`: `temperature` and `max_new_tokens`.

    Returns:
        `list[dict]`: a row per completion, those of a question together: `prompt`, `reference`, `completion`,
        `answer` and the `MEASURES`, all in `[0, 1]`. A malformed completion has likelihoods and exact match 0.
        `initial_reference_prob` is the likelihood of the reference after the same completion under the policy
        from before the training. Unlike `reference_prob` it does not rise where the policy has only become surer of
        itself; like it, it rises where malformed completions become fewer.
    """
    rows = [question for question in questions for _ in range(samples)]
    drawn = sample(model, tokenizer, [row["prompt"] for row in rows], seed, **sampling)
    prepared = [
        prepare_completion(*ids, row["answer"], tokenizer, "tags") for ids, row in zip(drawn, rows, strict=True)
    ]
    scored = [completion.row for completion in prepared if completion.row is not None]
    scores = iter(PolicyScorer(model, pad_token_id=tokenizer.pad_token_id).score(scored))
    with model.disable_adapter():
        initial = iter(PolicyScorer(model, pad_token_id=tokenizer.pad_token_id).score(scored))
    results = []
    for (_, completion_ids), row, completion in zip(drawn, rows, prepared, strict=True):
        text = decode(completion_ids, tokenizer)
        result = {
            "prompt": row["prompt"],
            "reference": row["answer"],
            "completion": tokenizer.decode(completion_ids, skip_special_tokens=True),
            "answer": completion.span.answer,
            **dict.fromkeys(MEASURES, 0.0),
            "malformed": float(completion.row is None),
            "format_score": format_reward(text, "r1_nothink"),
        }
        if completion.row is not None:
            own = next(scores)
            result["reference_prob"] = aggregate(own.reference)
            result["answer_prob"] = aggregate(own.answer)
            result["initial_reference_prob"] = aggregate(next(initial).reference)
            result["exact_match"] = float(normalised(completion.span.answer) == normalised(row["answer"]))
        results.append(result)
    return results


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """
    The mean of every one of the `MEASURES` over all completions, malformed ones included.

    `well_formed_reference_prob` is the mean of `reference_prob` without the malformed ones, and 0 if all are.
    """
    means = {measure: statistics.fmean(row[measure] for row in rows) for measure in MEASURES}
    well_formed = [row["reference_prob"] for row in rows if not row["malformed"]]
    return means | {"well_formed_reference_prob": statistics.fmean(well_formed) if well_formed else 0.0}


def normalised(answer: str) -> str:
    """An answer without what does not matter: case, an article, punctuation, white space."""
    words = re.sub(r"[^\w\s]", " ", answer.lower()).split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("a", "an", "the") else words)


def sample(
    model: Any, tokenizer: Any, questions: Sequence[str], seed: int, **sampling: Any
) -> list[tuple[list[int], list[int]]]:
    """For every question the ids of its prompt, and of one completion drawn for it up to and with the end token."""
    import torch

    texts = [
        tokenizer.apply_chat_template(messages(question), add_generation_prompt=True, tokenize=False)
        for question in questions
    ]
    drawn: list[tuple[list[int], list[int]]] = []
    was_training = model.training
    model.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for start in range(0, len(texts), BATCH_SIZE):
            batch = tokenizer(
                texts[start : start + BATCH_SIZE],
                return_tensors="pt",
                padding=True,
                padding_side="left",
                add_special_tokens=False,
            )
            output = model.generate(**batch, do_sample=True, top_k=0, top_p=1.0, **sampling)
            width = batch["input_ids"].shape[1]
            for ids, mask, completion in zip(
                batch["input_ids"], batch["attention_mask"], output[:, width:].tolist(), strict=True
            ):
                drawn.append((ids[mask.bool()].tolist(), up_to_end(completion, tokenizer.eos_token_id)))
    model.train(was_training)
    return drawn


def up_to_end(ids: list[int], end: int) -> list[int]:
    """Ids up to and with the first end token; what follows it is padding."""
    return ids[: ids.index(end) + 1] if end in ids else ids
