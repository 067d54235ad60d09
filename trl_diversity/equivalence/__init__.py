# SPDX-License-Identifier: Apache-2.0
"""Do two completions mean the same? Public names are imported lazily, because most of them need torch."""

from trl_diversity.lazy_names import lazy_names


_PUBLIC_NAMES = {
    "AnswerEquivalence": "answer",
    "BiEncoderEquivalence": "bi_encoder",
    "CrossEncoderEquivalence": "cross_encoder",
    "EmbeddingEquivalence": "embedding",
    "EquivalenceModel": "base",
    "JudgeEquivalence": "judge",
    "MathVerifier": "verification",
    "ServerEquivalence": "server",
    "load_equivalence_model": "loading",
}
__all__ = sorted(_PUBLIC_NAMES)
__getattr__, __dir__ = lazy_names(__name__, _PUBLIC_NAMES)
