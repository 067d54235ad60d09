# SPDX-License-Identifier: Apache-2.0
"""Tunes the base of a bi-encoder on labelled pairs with a contrastive loss, by sentence-transformers' trainer."""

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trl_diversity.classifiers.pairs import LabelledPair


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def tune_base(
    sentence_transformer: "SentenceTransformer",
    pairs: Sequence[LabelledPair],
    epochs: float,
    learning_rate: float,
    batch_size: int,
    seed: int,
    use_cpu: bool,
) -> None:
    """
    Pull the embeddings of "same" pairs together and push those of "different" pairs apart, in place.

    A head that is calibrated out of fold over a base tuned on the same pairs looks better than it is: keep a test set.

    Args:
        sentence_transformer ([`~sentence_transformers.SentenceTransformer`]):
            The base; a text is read as far as its maximum length.
        pairs (`Sequence[LabelledPair]`):
            Training data.
        epochs (`float`):
            Passes over it.
        learning_rate (`float`):
            The highest one, of a cosine schedule.
        batch_size (`int`):
            Pairs per step.
        seed (`int`):
            Of order and dropout.
        use_cpu (`bool`):
            Whether a GPU stays unused.
    """
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import OnlineContrastiveLoss

    rows = [
        {"generation_0": pair.generation_0, "generation_1": pair.generation_1, "label": pair.similar} for pair in pairs
    ]
    dataset = Dataset.from_list(rows)
    with tempfile.TemporaryDirectory() as directory:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=directory,
            num_train_epochs=epochs,
            learning_rate=learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=0.1,  # below 1 it is a share of all steps
            per_device_train_batch_size=batch_size,
            save_strategy="no",
            use_cpu=use_cpu,
            seed=seed,
            data_seed=seed,
            report_to="none",
        )
        SentenceTransformerTrainer(
            model=sentence_transformer,
            args=arguments,
            train_dataset=dataset,
            loss=OnlineContrastiveLoss(sentence_transformer),
        ).train()
    sentence_transformer.eval()
