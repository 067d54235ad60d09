# SPDX-License-Identifier: Apache-2.0
"""
Compares the bi-encoder's training recipe with the bare cosine, over folds by prompt and several seeds.

`python -m trl_diversity.classifiers.cross_validation train.jsonl val.jsonl`
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trl_diversity.classifiers.bi_encoder_training import BiEncoderSettings, augmentation, pair_inputs, pair_texts
from trl_diversity.classifiers.calibration import area_under_curve, bootstrap_metrics, pair_metrics, stable_threshold
from trl_diversity.classifiers.head_training import choose_l2, fit_head, out_of_fold_logits
from trl_diversity.classifiers.pairs import LabelledPair, folds_by_prompt, load_pairs


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from trl_diversity.equivalence.bi_encoder import PairHead

SEEDS = (0, 1, 2, 3, 4)


def cross_validate(
    pairs: Sequence[LabelledPair],
    sentence_transformer: "SentenceTransformer",
    settings: BiEncoderSettings,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """
    Score every pair by models that saw no pair of its prompt. Penalty and threshold are chosen within the rest.

    Args:
        pairs (`Sequence[LabelledPair]`):
            All labelled pairs.
        sentence_transformer ([`~sentence_transformers.SentenceTransformer`]):
            The base.
        settings ([`BiEncoderSettings`]):
            How the head is trained; `folds` are the outer and the inner ones.
        seeds (`Sequence[int]`, *optional*):
            One deal of prompts over folds for each.

    Returns:
        `dict`: for `"cosine"` and `"head"`, per seed the probabilities and whether each lies above its fold's
        threshold, `(pairs,)` both.
    """
    from trl_diversity.equivalence.pair_features import feature_names

    extra = augmentation(pairs[:0], replace(settings, sure_pairs=0))
    inputs, extra_inputs = pair_inputs([pairs, extra], sentence_transformer, settings.head)
    labels, extra_labels = (np.array([pair.similar for pair in part]) for part in (pairs, extra))
    column = feature_names(settings.head.features, sentence_transformer.get_embedding_dimension()).index("cosine")
    cosines = np.clip(inputs[:, column], 0, 1)
    results: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"cosine": [], "head": []}
    for seed in seeds:
        scores, same, same_cosine = np.zeros(len(pairs)), np.zeros(len(pairs), bool), np.zeros(len(pairs), bool)
        for held_out in folds_by_prompt(pairs, settings.folds, seed):
            rest = np.setdiff1d(np.arange(len(pairs)), held_out)
            head, threshold = _fitted(
                inputs[rest], [pairs[index] for index in rest], extra_inputs, extra_labels, settings, seed
            )
            scores[held_out] = _sigmoid(head.logits(inputs[held_out]))
            same[held_out] = scores[held_out] > threshold
            threshold = stable_threshold(labels[rest], cosines[rest], settings.goal)
            same_cosine[held_out] = cosines[held_out] > threshold
        results["head"].append((scores, same))
        results["cosine"].append((cosines, same_cosine))
    return results


def _fitted(
    inputs: np.ndarray,
    pairs: Sequence[LabelledPair],
    extra_inputs: np.ndarray,
    extra_labels: np.ndarray,
    settings: BiEncoderSettings,
    seed: int,
) -> tuple["PairHead", float]:
    """A head fitted on a training part, and its threshold: penalty and threshold from folds within that part."""
    from trl_diversity.equivalence.bi_encoder import PairHead

    labels = np.array([pair.similar for pair in pairs])
    extra = (extra_inputs, extra_labels)
    l2, _ = choose_l2(inputs, pairs, settings.head, *extra, settings.l2_candidates, settings.folds, seed)
    head_settings = replace(settings.head, l2=l2)
    logits = out_of_fold_logits(inputs, pairs, head_settings, *extra, settings.folds, seed)
    weights = fit_head(np.concatenate([inputs, extra_inputs]), np.concatenate([labels, extra_labels]), head_settings)
    head = PairHead(head_settings.features, weights, head_settings.by_length)
    return head, stable_threshold(labels, _sigmoid(logits), settings.goal)


def compare(
    labels: Sequence[int], results: dict[str, list[tuple[np.ndarray, np.ndarray]]], resamples: int = 2000
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """
    Mean over seeds of AUC and balanced accuracy, and of the difference between head and cosine.

    Returns:
        `dict`: for `"cosine"`, `"head"` and `"difference"`, for each metric its value and the ends of its 95 %
        interval over pairs (the same draws for both models).
    """
    truth = np.asarray(labels)

    def measured(drawn: np.ndarray) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, runs in results.items():
            areas = [area_under_curve(truth[drawn], scores[drawn]) for scores, _ in runs]
            balanced = [
                pair_metrics(truth[drawn], same[drawn].astype(float), 0.5)["balanced_accuracy"] for _, same in runs
            ]
            values |= {f"{name} auc": float(np.mean(areas)), f"{name} balanced_accuracy": float(np.mean(balanced))}
        for metric in ("auc", "balanced_accuracy"):
            values[f"difference {metric}"] = values[f"head {metric}"] - values[f"cosine {metric}"]
        return values

    whole = measured(np.arange(len(truth)))
    intervals = bootstrap_metrics(measured, labels, resamples)
    table: dict[str, dict[str, tuple[float, float, float]]] = {}
    for key, value in whole.items():
        name, metric = key.split()
        table.setdefault(name, {})[metric] = (value, *intervals[key])
    return table


def cut_pair(pair: LabelledPair, tokenizer: Any, max_text_tokens: int) -> LabelledPair:
    """The pair with the first `max_text_tokens` tokens of either text: what truncation costs can be measured so."""
    tokenizer.no_truncation()
    cut = []
    for text in pair_texts(pair):
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        cut.append(text if len(offsets) <= max_text_tokens else text[: offsets[max_text_tokens - 1][1]])
    return replace(pair, generation_0=cut[0], generation_1=cut[1])


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def main(argv: Sequence[str] | None = None) -> None:
    """Read files of pairs, compare, and write the table as JSON to standard output."""
    from trl_diversity.equivalence.embedding import load_sentence_transformer
    from trl_diversity.equivalence.loading import minilm_path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="Files of labelled pairs, taken together.")
    parser.add_argument("--max_text_tokens", type=int, help="Read only so many tokens of a text.")
    args = parser.parse_args(argv)
    pairs = [pair for path in args.files for pair in load_pairs(path)]
    base = load_sentence_transformer(minilm_path(), "cpu", "float32", False, None)
    if args.max_text_tokens is not None:
        pairs = [cut_pair(pair, base.tokenizer.backend_tokenizer, args.max_text_tokens) for pair in pairs]
    results = cross_validate(pairs, base, BiEncoderSettings())
    table = compare([pair.similar for pair in pairs], results)
    sys.stdout.write(json.dumps({"pairs": len(pairs), "seeds": len(SEEDS), **table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
