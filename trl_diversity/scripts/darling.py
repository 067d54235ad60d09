# SPDX-License-Identifier: Apache-2.0
"""
Train a policy with Darling: `trl-diversity darling --config FILE.yaml [--option VALUE ...]`.

On several GPUs: `accelerate launch -m trl_diversity.scripts.darling --config FILE.yaml`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trl_diversity.scripts.parsing import StrictParser, export_environment
from trl_diversity.scripts.training import TrainingScriptArguments, run_training


@dataclass
class DarlingScriptArguments(TrainingScriptArguments):
    """Arguments of `trl-diversity darling` besides those of [`DarlingConfig`] and [`~trl.ModelConfig`]."""


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command. It imports the trainer's configuration, which takes seconds."""
    from trl import ModelConfig

    from trl_diversity.trainers.darling_config import DarlingConfig

    return StrictParser(
        (DarlingScriptArguments, DarlingConfig, ModelConfig),
        prog=prog,
        description="Train a policy with Darling: GRPO that rewards quality times semantic diversity.",
    )


def main(script_args: DarlingScriptArguments, training_args: Any, model_args: Any) -> None:
    """
    Train a policy as the arguments say.

    Args:
        script_args ([`DarlingScriptArguments`]):
            Data and rewards.
        training_args ([`DarlingConfig`]):
            Training, generation and diversity.
        model_args ([`~trl.ModelConfig`]):
            The policy.
    """
    from trl_diversity.trainers import DarlingTrainer

    run_training(DarlingTrainer, script_args, training_args, model_args)


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and train."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run(prog="python -m trl_diversity.scripts.darling")
