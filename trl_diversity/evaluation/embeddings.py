# SPDX-License-Identifier: Apache-2.0
"""Diversity of a group in the space of sentence embeddings."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def mean_pairwise_distance(embeddings: Any) -> float:
    """
    Mean cosine distance over all pairs of a group, `1 - cos`.

    Args:
        embeddings (`array` of shape `(n, dimension)`):
            One vector per completion, n at least 2; their lengths do not matter.

    Returns:
        `float` in `[0, 2]`: 0 if all point the same way.

    Raises:
        `ValueError`: if the shape is another, or a vector is zero or not finite.
    """
    vectors = np.asarray(embeddings, dtype=np.float64)  # (n, dimension)
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ValueError(f"give at least two vectors as an array (n, dimension); got the shape {vectors.shape}.")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)  # (n, 1)
    if not np.isfinite(norms).all() or (norms == 0).any():
        raise ValueError("an embedding is zero or not finite: it has no direction.")
    units = vectors / norms
    n = len(units)
    # The cosines sum up to the squared length of the sum of all units; n of them are of a vector with itself.
    mean_cosine = (float(np.square(units.sum(axis=0)).sum()) - n) / (n * (n - 1))
    return min(2.0, max(0.0, 1.0 - mean_cosine))


def mean_embedding_distance(completions: Sequence[str], sentence_transformer: Any) -> float:
    """
    [`mean_pairwise_distance`] of the completions' embeddings.

    Args:
        completions (`Sequence[str]`):
            At least two completions of one prompt.
        sentence_transformer ([`~sentence_transformers.SentenceTransformer`]):
            Model that embeds them.

    Returns:
        `float` in `[0, 2]`.
    """
    vectors = sentence_transformer.encode(list(completions), show_progress_bar=False, convert_to_numpy=True)
    return mean_pairwise_distance(vectors)
