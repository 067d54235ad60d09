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
    Command("partition", "partition", "sort the completions of every prompt into clusters of one meaning each"),
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
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return
    if arguments[0] in ("-V", "--version"):
        print(f"{PROG} {__version__}")
        return
    commands = {command.name: command for command in COMMANDS}
    if arguments[0] not in commands:
        nearest = difflib.get_close_matches(arguments[0], commands, n=1, cutoff=0.0)[0]
        print(f"{PROG}: error: there is no command {arguments[0]!r}; the nearest is `{nearest}`.", file=sys.stderr)
        print(_help(), file=sys.stderr)
        sys.exit(2)
    command = commands[arguments[0]]
    # Only now: a command's imports take seconds
    import_module(f"trl_diversity.scripts.{command.module}").run(arguments[1:], prog=f"{PROG} {command.name}")


def _help() -> str:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{width}}  {command.help}" for command in COMMANDS]
    return "\n".join(
        [
            f"usage: {PROG} COMMAND [--config FILE.yaml] [--option VALUE ...]",
            "",
            "Diversity-aware reinforcement learning for language models, on top of TRL.",
            "",
            "commands:",
            *lines,
            "",
            f"`{PROG} COMMAND --help` lists the options of a command, `{PROG} --version` tells the version.",
        ]
    )


if __name__ == "__main__":
    main()
