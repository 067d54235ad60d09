# SPDX-License-Identifier: Apache-2.0
"""The command `trl-diversity`: finds the module of a command and runs it."""

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from trl_diversity import __version__


class Command(NamedTuple):
    """One command: a module of `trl_diversity.scripts` with a function `run(argv, prog)`, and what it does."""

    name: str
    module: str
    help: str


PROG = "trl-diversity"
COMMANDS = (
    Command("darling", "darling", "train a policy with Darling: quality times semantic diversity"),
    Command("darl", "darl", "train a policy with Darl: the likelihood of references, no verifier"),
    Command("train-classifier", "train_classifier", "train a classifier: do two generations mean the same?"),
    Command("evaluate-classifier", "evaluate_classifier", "score a classifier or a judge on labelled pairs"),
    Command("make-pairs", "make_pairs", "sample pairs of generations of several models, to be labelled"),
    Command("label-pairs", "label_pairs", "label pairs of generations with an LLM judge"),
    Command("partition", "partition", "sort the completions of every prompt into clusters of one meaning each"),
    Command("evaluate", "evaluate", "measure quality and diversity: noveltybench, pass-at-k, sweep, answer files"),
    Command("explain", "explain", "show a past step: clusters, pair scores, quality, diversity, reward"),
    Command("compare", "compare", "show completions of several checkpoints side by side, clusters coloured"),
    Command("build-divpo-pairs", "build_divpo_pairs", "preference pairs for the baseline DivPO from scored groups"),
    Command("divpo", "divpo", "train a policy with the baseline DivPO: sample, pair, DPO, in rounds"),
    Command("prepare-data", "prepare_data", "filter and sample a published data set for training"),
    Command("preflight", "preflight", "try a recipe on a few prompts and say why training would be wasted"),
    Command("check-recipe", "check_recipe", "check a recipe: keys, batch geometry, memory, servers"),
    Command("serve-classifier", "serve_classifier", "serve a pair classifier with vLLM, one server per GPU"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """
    Run a command.

    Args:
        argv (`Sequence[str]`, *optional*):
            Name of the command and its arguments. `sys.argv[1:]` by default.

    Raises:
        `SystemExit`: with status 2 if there is no such command.
    """
    dispatch(argv, PROG, COMMANDS, "Diversity-aware reinforcement learning for language models, on top of TRL.")


def dispatch(argv: Sequence[str] | None, prog: str, commands: Sequence[Command], description: str) -> None:
    """Run the command that the first argument names, or explain them all."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(prog, commands, description))
        return
    if arguments[0] in ("-V", "--version"):
        print(f"{PROG} {__version__}")
        return
    known = {command.name: command for command in commands}
    if arguments[0] not in known:
        nearest = difflib.get_close_matches(arguments[0], known, n=1, cutoff=0.0)[0]
        print(f"{prog}: error: there is no command {arguments[0]!r}; the nearest is `{nearest}`.", file=sys.stderr)
        print(_help(prog, commands, description), file=sys.stderr)
        sys.exit(2)
    command = known[arguments[0]]
    # Only now: a command's imports take seconds
    import_module(f"trl_diversity.scripts.{command.module}").run(arguments[1:], prog=f"{prog} {command.name}")


def _help(prog: str, commands: Sequence[Command], description: str) -> str:
    width = max(len(command.name) for command in commands)
    lines = [f"  {command.name:<{width}}  {command.help}" for command in commands]
    return "\n".join(
        [
            f"usage: {prog} COMMAND [--config FILE.yaml] [--option VALUE ...]",
            "",
            description,
            "",
            "commands:",
            *lines,
            "",
            f"`{prog} COMMAND --help` lists the options of a command, `{PROG} --version` tells the version.",
        ]
    )


if __name__ == "__main__":
    main()
