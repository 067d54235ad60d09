# SPDX-License-Identifier: Apache-2.0
"""
Train a classifier that says whether two generations mean the same.

`trl-diversity train-classifier --data pairs.jsonl --output_dir OUT [--kind cross-encoder] [--option VALUE ...]`
"""

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trl_diversity.scripts.parsing import StrictParser, export_environment


if TYPE_CHECKING:
    from trl_diversity.classifiers.cross_encoder_training import CrossEncoderSettings

logger = logging.getLogger(__name__)


@dataclass
class TrainClassifierArguments:
    """
    Arguments of `trl-diversity train-classifier`.

    Args:
        data (`str`):
            Labelled pairs: a .jsonl, .json or .parquet file, or a data set on the Hub.
        output_dir (`str`):
            Directory of the checkpoint.
        kind (`str`, *optional*, defaults to `"bi-encoder"`):
            `"bi-encoder"` (a head over embeddings: n encodings for a group of n) or `"cross-encoder"` (reads both
            texts together: one pass per pair).
        base_model (`str`, *optional*, defaults to `"minilm"`):
            Hub name or directory of the base, or `"minilm"` for all-MiniLM-L6-v2.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a data set on the Hub.
        dev_data (`str`, *optional*):
            Development pairs for early stopping and calibration of a cross-encoder. A share of the prompts of `data`
            by default. Never the test split.
        dev_share (`float`, *optional*, defaults to 0.1):
            That share.
        generation_0_column, generation_1_column, label_column, prompt_column (`str`, *optional*):
            Names of the columns.
        goal (`str`, *optional*, defaults to `"balanced_accuracy"`):
            What the threshold is chosen for.
        false_merge_rate (`float`, *optional*, defaults to 0.05):
            For the goal of that name.
        class_weights (`bool`, *optional*, defaults to `False`):
            Weigh the classes inversely to their frequency.
        seed (`int`, *optional*, defaults to 0):
            Seed of everything that is drawn.
        features (`list[str]`, *optional*):
            Bi-encoder: groups of features.
        by_length (`bool`, *optional*, defaults to `True`):
            Bi-encoder: short texts get weights of their own.
        hidden_units (`int`, *optional*, defaults to 0):
            Bi-encoder: units of a hidden layer; 0 is a linear head.
        l2 (`list[float]`, *optional*):
            Bi-encoder: penalties to choose from by the AUC over five folds.
        sure_pairs (`int`, *optional*, defaults to 100):
            Bi-encoder: edited copies, and as many unrelated pairs, that are added.
        short_pairs (`int`, *optional*, defaults to 600):
            Bi-encoder: hand-written short answers that are added.
        tune_epochs (`float`, *optional*, defaults to 0.0):
            Bi-encoder: epochs of contrastive tuning of the base before the head is fitted.
        max_side_tokens (`int`, *optional*, defaults to 128):
            Cross-encoder: tokens of either text.
        num_labels (`int`, *optional*, defaults to 1):
            Cross-encoder: 1 or 2 logits.
        both_orders (`bool`, *optional*, defaults to `True`):
            Cross-encoder: train on both orders of every pair.
        num_train_epochs, learning_rate, batch_size, gradient_accumulation_steps (*optional*):
            Cross-encoder, and the tuning of a bi-encoder's base.
        patience (`int`, *optional*, defaults to 2):
            Cross-encoder: epochs without a better development AUC before training stops.
        lora_rank (`int`, *optional*, defaults to 0):
            Cross-encoder: rank of LoRA adapters, merged when saving. 0 trains all weights.
        bf16, gradient_checkpointing, use_cpu (`bool`, *optional*, defaults to `False`):
            As transformers' training arguments.
        resume (`bool`, *optional*, defaults to `False`):
            Cross-encoder: take up the run in `output_dir` from its last checkpoint.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the base's checkpoint may run.
        push_to_hub (`bool`, *optional*, defaults to `False`):
            Push the classifier to the Hub once it is saved.
        hub_model_id (`str`, *optional*):
            Its repository, such as `"you/your-classifier"`. The name of `output_dir` by default.
        hub_private_repo (`bool`, *optional*, defaults to `False`):
            Whether a repository that is made for it is private.
    """

    data: str = field(metadata={"help": "Labelled pairs: a .jsonl, .json or .parquet file, or a data set on the Hub."})
    output_dir: str = field(metadata={"help": "Directory of the checkpoint."})
    kind: Literal["bi-encoder", "cross-encoder"] = field(
        default="bi-encoder",
        metadata={"help": "`bi-encoder` (a head over embeddings) or `cross-encoder` (reads both texts together)."},
    )
    base_model: str = field(
        default="minilm", metadata={"help": "Hub name or directory of the base; `minilm` is all-MiniLM-L6-v2."}
    )
    split: str = field(default="train", metadata={"help": "Split of a data set on the Hub."})
    dev_data: str | None = field(
        default=None,
        metadata={"help": "Cross-encoder: development pairs. A share of the prompts of `data` by default."},
    )
    dev_share: float = field(default=0.1, metadata={"help": "Cross-encoder: that share."})
    generation_0_column: str = field(default="generation_0", metadata={"help": "Column of the first text."})
    generation_1_column: str = field(default="generation_1", metadata={"help": "Column of the second text."})
    label_column: str = field(default="similar", metadata={"help": "Column of the label: 0, 1, true or false."})
    prompt_column: str = field(default="prompt", metadata={"help": "Column of the prompt, if there is one."})
    goal: Literal["accuracy", "balanced_accuracy", "f1", "false_merge_rate"] = field(
        default="balanced_accuracy", metadata={"help": "What the threshold is chosen for."}
    )
    false_merge_rate: float = field(default=0.05, metadata={"help": "For the goal of that name."})
    class_weights: bool = field(default=False, metadata={"help": "Weigh classes inversely to their frequency."})
    seed: int = field(default=0, metadata={"help": "Seed of everything that is drawn."})
    features: list[str] = field(
        default_factory=lambda: ["tokens", "words", "layout", "cosine", "windows"],
        metadata={"help": "Bi-encoder: of tokens, words, layout, cosine, windows, difference, product, both."},
    )
    by_length: bool = field(default=True, metadata={"help": "Bi-encoder: weights of their own for short texts."})
    hidden_units: int = field(default=0, metadata={"help": "Bi-encoder: units of a hidden layer; 0: linear."})
    l2: list[float] = field(
        default_factory=lambda: [1.0, 3.0, 10.0, 30.0],
        metadata={"help": "Bi-encoder: penalties to choose from by the AUC over five folds."},
    )
    sure_pairs: int = field(default=100, metadata={"help": "Bi-encoder: edited copies and unrelated pairs added."})
    short_pairs: int = field(default=600, metadata={"help": "Bi-encoder: hand-written short answers added."})
    tune_epochs: float = field(default=0.0, metadata={"help": "Bi-encoder: epochs of contrastive tuning first."})
    max_side_tokens: int = field(default=128, metadata={"help": "Cross-encoder: tokens of either text."})
    num_labels: int = field(default=1, metadata={"help": "Cross-encoder: 1 or 2 logits."})
    both_orders: bool = field(default=True, metadata={"help": "Cross-encoder: train on both orders of every pair."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Cross-encoder: epochs at most."})
    learning_rate: float = field(default=2e-5, metadata={"help": "Highest learning rate, of a cosine schedule."})
    batch_size: int = field(default=16, metadata={"help": "Pairs per device and forward pass."})
    gradient_accumulation_steps: int = field(default=1, metadata={"help": "Passes per optimizer step."})
    patience: int = field(default=2, metadata={"help": "Cross-encoder: epochs without a better AUC before the end."})
    lora_rank: int = field(default=0, metadata={"help": "Cross-encoder: rank of LoRA adapters; 0: all weights."})
    bf16: bool = field(default=False, metadata={"help": "Train in bfloat16."})
    gradient_checkpointing: bool = field(default=False, metadata={"help": "Less memory, more time."})
    use_cpu: bool = field(default=False, metadata={"help": "Train on the CPU even if there is a GPU."})
    resume: bool = field(default=False, metadata={"help": "Cross-encoder: continue the run in `output_dir`."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Whether code from the base may run."})
    push_to_hub: bool = field(default=False, metadata={"help": "Push the classifier to the Hub once it is saved."})
    hub_model_id: str | None = field(
        default=None, metadata={"help": "Its repository on the Hub. Default: the name of `output_dir`."}
    )
    hub_private_repo: bool = field(default=False, metadata={"help": "Make a private repository."})

    def __post_init__(self):
        for name in ("hidden_units", "sure_pairs", "short_pairs", "lora_rank", "tune_epochs"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` is at least 0; got {getattr(self, name)}.")
        for name in ("max_side_tokens", "batch_size", "gradient_accumulation_steps", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is at least 1; got {getattr(self, name)}.")
        if self.num_labels not in (1, 2):
            raise ValueError(f"`num_labels` is 1 or 2; got {self.num_labels}.")
        if not 0 < self.dev_share < 1:
            raise ValueError(f"`dev_share` lies in (0, 1); got {self.dev_share}.")
        if not self.l2 or min(self.l2) < 0:
            raise ValueError(f"`l2` holds penalties of at least 0; got {self.l2}.")


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command."""
    return StrictParser(
        TrainClassifierArguments,
        prog=prog,
        usage="%(prog)s --data PAIRS.jsonl --output_dir DIRECTORY [--kind cross-encoder] [--option VALUE ...]",
        description="Train a classifier that says whether two generations mean the same.",
    )


def main(args: TrainClassifierArguments, command: str = "trl-diversity train-classifier") -> dict[str, float]:
    """
    Train, calibrate and save a classifier.

    Args:
        args ([`TrainClassifierArguments`]):
            What to train.
        command (`str`, *optional*):
            The command line, for the model card.

    Returns:
        `dict[str, float]`: its metrics on pairs that it was not fitted on.

    Raises:
        `SystemExit`: with a plain message, if the data is not as it must be, or the saved classifier could not be
            pushed.
    """
    from trl_diversity.classifiers.pairs import PairColumns, load_pairs

    columns = PairColumns(args.generation_0_column, args.generation_1_column, args.label_column, args.prompt_column)
    try:
        pairs = load_pairs(args.data, columns, args.split)
        dev_pairs = None if args.dev_data is None else load_pairs(args.dev_data, columns, args.split)
        train = _train_bi_encoder if args.kind == "bi-encoder" else _train_cross_encoder
        metrics = train(args, pairs, dev_pairs, command)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"train-classifier: error: {error}") from error
    except OSError as error:  # what transformers says of a base that it cannot read does not always name it
        raise SystemExit(f"train-classifier: error: with the base {args.base_model!r}: {error}") from error
    if os.environ.get("RANK", "0") == "0":
        print(" ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
        print(f"Saved to {args.output_dir}.")
        if args.push_to_hub:
            _push(args)
    return metrics


def _push(args: TrainClassifierArguments) -> None:
    """Upload what was saved, without the checkpoints of the run, from which it was chosen."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        name = args.hub_model_id or Path(args.output_dir).absolute().name
        repository = api.create_repo(name, private=args.hub_private_repo or None, exist_ok=True).repo_id
        api.upload_folder(
            repo_id=repository,
            folder_path=args.output_dir,
            commit_message="Pair classifier",
            ignore_patterns=["checkpoint-*/**", "eval/**"],
        )
    except Exception as error:  # the classifier is on disk: whatever the Hub says, it is not lost
        raise SystemExit(
            f"train-classifier: error: the classifier was not pushed to the Hub: {type(error).__name__}: {error}\n"
            f"It is complete in {args.output_dir}, from where it can be pushed with `hf upload`."
        ) from error
    print(f"Pushed to https://huggingface.co/{repository}.")


def _train_bi_encoder(args: TrainClassifierArguments, pairs: list, dev_pairs: list | None, command: str) -> dict:
    from trl_diversity.classifiers.bi_encoder_training import train_bi_encoder
    from trl_diversity.classifiers.model_card import write_model_card
    from trl_diversity.equivalence.embedding import load_sentence_transformer
    from trl_diversity.equivalence.loading import minilm_path

    if dev_pairs is not None:
        raise ValueError("`dev_data` is not read for a bi-encoder, which is calibrated out of fold: leave it out")
    path = minilm_path() if args.base_model == "minilm" else args.base_model
    device = "cpu" if args.use_cpu else None
    base = load_sentence_transformer(path, device, "float32", args.trust_remote_code, None)
    if args.tune_epochs:
        from trl_diversity.classifiers.base_tuning import tune_base

        tune_base(base, pairs, args.tune_epochs, args.learning_rate, args.batch_size, args.seed, args.use_cpu)
    trained = train_bi_encoder(pairs, base, _bi_encoder_settings(args))
    # A base that is tuned or lies on this machine goes with the head: its path would mean nothing elsewhere.
    save_base = bool(args.tune_epochs) or os.path.isdir(args.base_model)
    trained.model.save_pretrained(args.output_dir, args.base_model, save_base=save_base)
    write_model_card(
        args.output_dir,
        "Pair classifier: a head over sentence embeddings",
        f"Says with which probability two generations mean the same. Base: {os.path.basename(args.base_model)}. "
        f"Trained on {len(pairs)} labelled pairs; scores are out of fold (five folds by prompt).",
        command,
        _flat(asdict(trained.settings)),
        {"training data, out of fold": trained.metrics},
        {
            "threshold": trained.model.threshold,
            "temperature": trained.model.temperature,
            "chosen for": args.goal,
            "chosen on": "training data, out of fold",
        },
    )
    return trained.metrics


def _bi_encoder_settings(args: TrainClassifierArguments) -> Any:
    from trl_diversity.classifiers.bi_encoder_training import BiEncoderSettings
    from trl_diversity.classifiers.head_training import HeadSettings

    return BiEncoderSettings(
        head=HeadSettings(
            features=tuple(args.features),
            by_length=args.by_length,
            hidden_units=args.hidden_units,
            l2=args.l2[0],
            class_weights=args.class_weights,
            seed=args.seed,
        ),
        l2_candidates=tuple(args.l2) if len(args.l2) > 1 else (),
        sure_pairs=args.sure_pairs,
        short_pairs=args.short_pairs,
        goal=args.goal,
        false_merge_rate=args.false_merge_rate,
        seed=args.seed,
    )


def _train_cross_encoder(args: TrainClassifierArguments, pairs: list, dev_pairs: list | None, command: str) -> dict:
    from trl_diversity.classifiers.cross_encoder_training import train_cross_encoder
    from trl_diversity.classifiers.pairs import split_by_prompt

    if dev_pairs is None:
        pairs, dev_pairs = split_by_prompt(pairs, args.dev_share, args.seed)
    return train_cross_encoder(pairs, dev_pairs, args.output_dir, cross_encoder_settings(args), command)


def cross_encoder_settings(args: TrainClassifierArguments) -> "CrossEncoderSettings":
    """How these arguments train a cross-encoder."""
    from trl_diversity.classifiers.cross_encoder_training import CrossEncoderSettings
    from trl_diversity.equivalence.loading import minilm_path

    names = CrossEncoderSettings.__dataclass_fields__
    settings = CrossEncoderSettings(**{name: value for name, value in vars(args).items() if name in names})
    return replace(settings, base_model=minilm_path()) if args.base_model == "minilm" else settings


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and train."""
    export_environment(argv, prog)
    arguments = list(sys.argv[1:] if argv is None else argv)
    (args,) = make_parser(prog).parse_args_and_config(arguments)
    main(args, f"trl-diversity train-classifier {shlex.join(_without_directories(arguments))}")


def _without_directories(arguments: list[str]) -> list[str]:
    """The command line with only the last part of local paths: a model card tells nothing of the machine."""

    def shortened(value: str) -> str:
        is_path = os.path.isabs(value) or value.startswith((".", "~")) or ("/" in value and os.path.exists(value))
        return os.path.basename(value.rstrip("/")) if is_path else value

    shown = []
    for item in arguments:
        option, equals, value = item.partition("=") if item.startswith("--") else ("", "", item)
        shown.append(f"{option}{equals}{shortened(value)}")
    return shown


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.train_classifier")
