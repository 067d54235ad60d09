# SPDX-License-Identifier: Apache-2.0
"""Parses a recipe as its command would on a number of GPUs, on a machine that may have none."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from trl_diversity.scripts.config_file import read_config
from trl_diversity.scripts.parsing import StrictParser
from trl_diversity.scripts.recipe_header import LaunchCommand, launch_commands


@dataclass(frozen=True)
class Recipe:
    """
    A recipe that its command accepts.

    Attributes:
        path (`str`):
            The file.
        command (`str`):
            `darling`, `darl` or `divpo`.
        num_processes (`int`):
            Training processes that it was parsed for.
        script_args, training_args, model_args (`Any`):
            What the command's parser made of it.
        written (`dict[str, Any]`):
            Keys that stand in the file, with their texts.
        commands (`list[LaunchCommand]`):
            Commands of its header.
    """

    path: str
    command: str
    num_processes: int
    script_args: Any
    training_args: Any
    model_args: Any
    written: dict[str, Any]
    commands: list[LaunchCommand]

    def serving(self, kind: str) -> list[LaunchCommand]:
        """Commands of the header that start servers of a kind, `policy` or `classifier`."""
        return [command for command in self.commands if command.serves == kind]


def parse_recipe(
    path: str, num_processes: int | None = None, overrides: Sequence[str] = (), command: str | None = None
) -> Recipe:
    """
    Parse a recipe strictly, with the parser of the command that it belongs to.

    The trainer's configuration checks sizes against the number of processes and refuses `bf16` without a GPU. Here it
    believes that it runs on `num_processes` of them; nothing is put on a device.

    Args:
        path (`str`):
            The recipe.
        num_processes (`int`, *optional*):
            Training processes. By default what the launch command in the header starts, else 1.
        overrides (`Sequence[str]`, *optional*):
            Options that go before the file's, as on a command line.
        command (`str`, *optional*):
            `darling`, `darl` or `divpo`. By default the one in the header, else the one whose keys the file uses.

    Returns:
        [`Recipe`].

    Raises:
        `OSError`: if there is no such file.
        `ValueError`: with everything that the command would refuse.
    """
    values = read_config(path).values
    commands = launch_commands(path)
    training = [launch for launch in commands if launch.trains]
    command = command or command_of(path)
    if num_processes is None:
        num_processes = next((launch.processes for launch in training if launch.processes), 1)
    if num_processes < 1:
        raise ValueError(f"`num_processes` is at least 1; got {num_processes}.")
    script_class, config_class, model_class = config_classes(command)
    parser = _RecipeParser((script_class, _planned(config_class, num_processes), model_class), prog=command)
    with _environment_kept():
        script_args, training_args, model_args = parser.parse_args_and_config(
            # On a CPU no library asks which data types a GPU has
            ["--config", path, *overrides, "--use_cpu", "true"]
        )
    return Recipe(path, command, num_processes, script_args, training_args, model_args, values, commands)


class _RecipeParser(StrictParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def command_of(path: str) -> str:
    """The command that trains with a recipe: the one in its header, else the one whose keys it uses."""
    named = [launch.trains for launch in launch_commands(path) if launch.trains]
    return named[0] if named else _command_of_keys(read_config(path).values)


def config_classes(command: str) -> tuple[type, type, type]:
    """Script, training and model arguments of a training command."""
    from trl import ModelConfig

    if command == "darl":
        from trl_diversity.scripts.darl import DarlScriptArguments
        from trl_diversity.trainers.darl_config import DarlConfig

        return DarlScriptArguments, DarlConfig, ModelConfig
    if command == "darling":
        from trl_diversity.scripts.darling import DarlingScriptArguments
        from trl_diversity.trainers.darling_config import DarlingConfig

        return DarlingScriptArguments, DarlingConfig, ModelConfig
    if command == "divpo":
        from trl import DPOConfig

        from trl_diversity.scripts.divpo import DivpoScriptArguments

        return DivpoScriptArguments, DPOConfig, ModelConfig
    raise ValueError(f"{command!r} trains nothing; accepted are 'darling', 'darl' and 'divpo'.")


def _planned(config_class: type, num_processes: int) -> type:
    """The configuration of a run on so many processes, wherever it is parsed."""
    return type(config_class.__name__, (config_class,), {"world_size": property(lambda self: num_processes)})


def _command_of_keys(values: dict[str, Any]) -> str:
    from dataclasses import fields

    names = {
        command: {f.name for cls in config_classes(command) for f in fields(cls)} for command in ("darling", "darl")
    }
    own = {command: len(values.keys() & (names[command] - names[other])) for command, other in _PAIRS}
    return "darl" if own["darl"] > own["darling"] else "darling"


_PAIRS = (("darling", "darl"), ("darl", "darling"))


@contextmanager
def _environment_kept() -> Iterator[None]:
    """The file's `env` is for the run, not for the program that checks it."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
