# SPDX-License-Identifier: Apache-2.0
"""Metrics and benchmark files. Public names are imported when they are first used."""

from trl_diversity.lazy_names import lazy_names


_PUBLIC_NAMES = {
    "bootstrap_interval": "intervals",
    "bootstrap_difference": "intervals",
    "corpus_distinct_ngrams": "lexical",
    "distinct": "metrics",
    "distinct_ngrams": "lexical",
    "mean_pairwise_distance": "embeddings",
    "novelty_utility": "metrics",
    "pass_at_k": "metrics",
    "reward_to_quality": "metrics",
    "self_bleu": "lexical",
}
__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES)
