# SPDX-License-Identifier: Apache-2.0
"""
Compares the bi-encoder's training recipe, and a cross-encoder's, with the bare cosine, over folds by prompt and seeds.

`python -m trl_diversity.classifiers.cross_validation train.jsonl val.jsonl [--cross_encoder RECIPE.yaml]`
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trl_diversity.classifiers.bi_encoder_training import BiEncoderSettings, augmentation, pair_inputs, pair_texts
from trl_diversity.classifiers.calibration import (
    area_under_curve,
    bootstrap_metrics,
    pair_metrics,
    probabilities_of,
    stable_threshold,
)
from trl_diversity.classifiers.head_training import choose_l2, fit_head, out_of_fold_logits
from trl_diversity.classifiers.pairs import LabelledPair, folds_by_prompt, load_pairs


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from trl_diversity.classifiers.cross_encoder_training import CrossEncoderSettings
    from trl_diversity.equivalence.bi_encoder import PairHead

SEEDS = (0, 1, 2, 3, 4)
FOLDS = 5


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
            scores[held_out] = probabilities_of(head.logits(inputs[held_out]))
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
    return head, stable_threshold(labels, probabilities_of(logits), settings.goal)


def cross_validate_cross_encoder(
    pairs: Sequence[LabelledPair],
    settings: "CrossEncoderSettings",
    seeds: Sequence[int] = SEEDS,
    dev_share: float = 0.1,
    journal: str | Path | None = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """
    Score every pair by a cross-encoder that was trained and calibrated on pairs of other prompts.

    Args:
        pairs (`Sequence[LabelledPair]`):
            All labelled pairs.
        settings ([`CrossEncoderSettings`]):
            How it is trained, with the seed of the deal.
        seeds (`Sequence[int]`, *optional*):
            One deal of prompts over folds for each.
        dev_share (`float`, *optional*, defaults to 0.1):
            Share of the other prompts that epoch, temperature and threshold are chosen on.
        journal (`str` or `pathlib.Path`, *optional*):
            File to which every fold is written when it is done; folds that it holds are not trained again.

    Returns:
        `list`: per seed the probabilities, the mean of both orders, and whether each lies above its fold's threshold,
        `(pairs,)` both.

    Raises:
        `ValueError`: if the journal was written for other pairs or settings.
    """
    known = _read_journal(journal, pairs, settings, dev_share)
    results = []
    for seed in seeds:
        scores, same = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
        for number, held_out in enumerate(folds_by_prompt(pairs, FOLDS, seed)):
            if (seed, number) not in known:
                known[seed, number] = _trained_fold(pairs, held_out, replace(settings, seed=seed), dev_share)
                if journal is not None:
                    found, threshold = known[seed, number]
                    entry = {"seed": seed, "fold": number, "threshold": threshold, "scores": found}
                    with open(journal, "a", encoding="utf-8") as file:
                        file.write(json.dumps(entry) + "\n")
            found, threshold = known[seed, number]
            scores[held_out] = found
            same[held_out] = scores[held_out] > threshold
        results.append((scores, same))
    return results


def _trained_fold(
    pairs: Sequence[LabelledPair], held_out: Sequence[int], settings: "CrossEncoderSettings", dev_share: float
) -> tuple[list[float], float]:
    from trl_diversity.classifiers.cross_encoder_training import train_cross_encoder
    from trl_diversity.classifiers.pairs import split_by_prompt
    from trl_diversity.equivalence import load_equivalence_model

    left_out = set(held_out)
    rest = [pair for index, pair in enumerate(pairs) if index not in left_out]
    train, dev = split_by_prompt(rest, dev_share, settings.seed)
    with tempfile.TemporaryDirectory() as directory:
        train_cross_encoder(train, dev, directory, settings)
        model = load_equivalence_model(directory, device="cpu" if settings.use_cpu else None, both_orders=True)
        texts = [(pairs[index].generation_0, pairs[index].generation_1) for index in held_out]
        return list(model.score_pairs(texts)), float(model.threshold)


def _read_journal(
    journal: str | Path | None, pairs: Sequence[LabelledPair], settings: "CrossEncoderSettings", dev_share: float
) -> dict[tuple[int, int], tuple[list[float], float]]:
    """Folds that are done. A new journal begins with what they depend on."""
    if journal is None:
        return {}
    left_out = ("base_model", "seed", "resume")  # a path of this machine, and what every fold has of its own
    kept = {name: value for name, value in vars(settings).items() if name not in left_out}
    base = _fingerprint(settings.base_model)
    made_with = {"pairs": [hash_of(pairs), len(pairs)], "base": base, "dev_share": dev_share, **kept}
    path = Path(journal)
    if not path.exists():
        path.write_text(json.dumps(made_with) + "\n", encoding="utf-8")
        return {}
    first, *rest = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    if first != made_with:
        raise ValueError(f"{path} was written for other pairs or settings: name another file, or remove it")
    return {(entry["seed"], entry["fold"]): (entry["scores"], entry["threshold"]) for entry in rest}


def _fingerprint(base_model: str) -> str:
    """The name of a base on the Hub, or the hash of a local one's weights."""
    weights = sorted(Path(base_model).glob("*.safetensors"))
    if not weights:
        return base_model
    digest = hashlib.sha256()
    for path in weights:
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def hash_of(pairs: Sequence[LabelledPair]) -> str:
    """The same for the same pairs in the same order."""
    return hashlib.sha256(json.dumps([vars(pair) for pair in pairs]).encode()).hexdigest()[:16]


def compare(
    labels: Sequence[int], results: dict[str, list[tuple[np.ndarray, np.ndarray]]], resamples: int = 2000
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """
    Mean over seeds of AUC and balanced accuracy, and of the difference between head and cosine.

    Returns:
        `dict`: for every model in `results` and for `"difference"`, for each metric its value and the ends of its 95 %
        interval over pairs (the same draws for all models).
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


def main(argv: Sequence[str] | None = None) -> None:
    """Read files of pairs, compare, and write the table as JSON to standard output."""
    from trl_diversity.equivalence.embedding import load_sentence_transformer
    from trl_diversity.equivalence.loading import minilm_path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="Files of labelled pairs, taken together.")
    parser.add_argument("--max_text_tokens", type=int, help="Read only so many tokens of a text.")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=SEEDS, help="Of the deals over folds; 0 to 4 by default."
    )
    parser.add_argument(
        "--cross_encoder", metavar="RECIPE.yaml", help="Of train-classifier: trained on every fold too."
    )
    parser.add_argument("--journal", help="Keep the cross-encoder's folds in this file, and continue from it.")
    args = parser.parse_args(argv)
    pairs = [pair for path in args.files for pair in load_pairs(path)]
    base = load_sentence_transformer(minilm_path(), "cpu", "float32", False, None)
    if args.max_text_tokens is not None:
        pairs = [cut_pair(pair, base.tokenizer.backend_tokenizer, args.max_text_tokens) for pair in pairs]
    results = cross_validate(pairs, base, BiEncoderSettings(), args.seeds)
    if args.cross_encoder is not None:
        settings, dev_share = _of_recipe(args.cross_encoder)
        results["cross_encoder"] = cross_validate_cross_encoder(pairs, settings, args.seeds, dev_share, args.journal)
    table = compare([pair.similar for pair in pairs], results)
    sys.stdout.write(json.dumps({"pairs": len(pairs), "seeds": len(args.seeds), **table}, indent=2) + "\n")


def _of_recipe(path: str) -> tuple["CrossEncoderSettings", float]:
    from trl_diversity.scripts.train_classifier import cross_encoder_settings, make_parser

    (recipe,) = make_parser().parse_args_and_config(["--config", path])
    if recipe.kind != "cross-encoder":
        raise SystemExit(f"{path} trains a {recipe.kind}: name the recipe of a cross-encoder")
    return cross_encoder_settings(recipe), recipe.dev_share


if __name__ == "__main__":
    main()
