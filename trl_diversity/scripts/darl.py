# SPDX-License-Identifier: Apache-2.0
"""
Train a policy with Darl: `trl-diversity darl --config FILE.yaml [--option VALUE ...]`.

On several GPUs: `accelerate launch -m trl_diversity.scripts.darl --config FILE.yaml`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trl_diversity.scripts.parsing import StrictParser, export_environment
from trl_diversity.scripts.training import TrainingScriptArguments, run_training


INSTRUCTIONS = {
    "r1": "Think about the question before you answer it. Write your reasoning between <think> and </think>, then "
    "your final answer between <answer> and </answer>.",
    "r1_nothink": "Work the question out, then write your final answer between <answer> and </answer>.",
}


@dataclass
class DarlScriptArguments(TrainingScriptArguments):
    """
    Arguments of `trl-diversity darl` besides those of [`DarlConfig`] and [`~trl.ModelConfig`].

    Args:
        instruction (`str`, *optional*):
            A system message that asks for the format of the answers: `"r1"` (think and answer tags) or `"r1_nothink"`
            (answer tags). `system_prompt` takes one of your own.
    """

    instruction: str | None = field(
        default=None,
        metadata={"help": "System message that asks for the format: `r1` (think and answer tags) or `r1_nothink`."},
    )

    def __post_init__(self) -> None:
        if self.instruction is None:
            return
        if self.instruction not in INSTRUCTIONS:
            raise ValueError(f"`instruction` is {self.instruction!r}; accepted are {', '.join(INSTRUCTIONS)}.")
        if self.system_prompt is not None:
            raise ValueError("`instruction` and `system_prompt` both give the system message. Remove one of the two.")
        self.system_prompt = INSTRUCTIONS[self.instruction]


def make_parser(prog: str | None = None) -> StrictParser:
    """The parser of this command. It imports the trainer's configuration, which takes seconds."""
    from trl import ModelConfig

    from trl_diversity.trainers.darl_config import DarlConfig

    return StrictParser(
        (DarlScriptArguments, DarlConfig, ModelConfig),
        prog=prog,
        description="Train a policy with Darl: GRPO that rewards the likelihood of a reference, without a verifier.",
    )


def main(script_args: DarlScriptArguments, training_args: Any, model_args: Any) -> None:
    """
    Train a policy as the arguments say.

    Args:
        script_args ([`DarlScriptArguments`]):
            Data, instruction, and rewards that are added to the likelihood.
        training_args ([`DarlConfig`]):
            Training, generation and likelihood.
        model_args ([`~trl.ModelConfig`]):
            The policy.
    """
    from trl_diversity.trainers import DarlTrainer

    run_training(DarlTrainer, script_args, training_args, model_args, needs_rewards=False)


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parse a command line and train."""
    export_environment(argv, prog)
    main(*make_parser(prog).parse_args_and_config(argv))


if __name__ == "__main__":
    run()
