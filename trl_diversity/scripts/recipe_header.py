# SPDX-License-Identifier: Apache-2.0
"""Reads the launch commands in a recipe's header, so that what it says about servers is checked like its keys."""

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import yaml


_COMMAND = re.compile(r"^#\s{2,}(?P<text>\S.*)$")
_ASSIGNMENT = re.compile(r"^[A-Z_][A-Z0-9_]*=")
_TRAINING_MODULES = {f"trl_diversity.scripts.{name}": name for name in ("darling", "darl", "divpo")}


@dataclass(frozen=True)
class LaunchCommand:
    """
    A command of a recipe's header.

    Attributes:
        words (`tuple[str, ...]`):
            The command, split as a shell splits it, without assignments of variables before it.
        environment (`dict[str, str]`):
            Those assignments.
        recipe (`Path`):
            The file that it stands in.
    """

    words: tuple[str, ...]
    environment: dict[str, str]
    recipe: Path

    def option(self, name: str) -> str | None:
        """The value of `--name`, written with underscores or hyphens; `None` if it is not given."""
        spellings = (f"--{name}", f"--{name.replace('_', '-')}")
        for index, word in enumerate(self.words):
            flag, _, value = word.partition("=")
            if flag in spellings:
                return value or (self.words[index + 1] if index + 1 < len(self.words) else None)
        return None

    @property
    def trains(self) -> str | None:
        """The trainer's command that it runs, `darling`, `darl` or `divpo`, or `None`."""
        for module, name in _TRAINING_MODULES.items():
            if module in self.words:
                return name
        if self.words[:1] == ("trl-diversity",) and self.words[1:2] and self.words[1] in _TRAINING_MODULES.values():
            return self.words[1]
        return None

    @property
    def serves(self) -> str | None:
        """The kind of server that it starts: `policy`, `classifier` or `None`."""
        if self.words[:2] == ("trl", "vllm-serve"):
            return "policy"
        if self.words[:2] == ("trl-diversity", "serve-classifier"):
            return "classifier"
        return None

    @property
    def gpus(self) -> int:
        """GPUs that a server takes, or training processes of this node that an `accelerate launch` starts."""
        if self.serves == "policy":
            return int(self.option("tensor_parallel_size") or 1) * int(self.option("data_parallel_size") or 1)
        if self.serves == "classifier":
            return int(self.option("gpus") or 1)
        return self.processes or 1

    @property
    def processes(self) -> int | None:
        """Training processes over all nodes, from `--num_processes` or the configuration file of accelerate."""
        if given := self.option("num_processes"):
            return int(given)
        if self.trains is None or (path := self._accelerate_file()) is None:
            return 1 if self.words[:1] == ("trl-diversity",) else None
        return int(yaml.safe_load(path.read_text())["num_processes"])

    @property
    def sharded(self) -> bool | None:
        """Whether the configuration file of accelerate shards the model; `None` if there is none."""
        path = self._accelerate_file()
        return None if path is None else yaml.safe_load(path.read_text())["distributed_type"] in ("DEEPSPEED", "FSDP")

    def _accelerate_file(self) -> Path | None:
        """The configuration file of accelerate, which is named from the root of the recipe's repository."""
        name = self.option("config_file")
        if name is None:
            return None
        places = [Path(name), *(parent / name for parent in self.recipe.resolve().parents)]
        return next((place for place in places if place.is_file()), None)


def header_lines(path: str | os.PathLike) -> list[str]:
    """The comment at the top of a file, line by line."""
    lines = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line)
    return lines


def launch_commands(path: str | os.PathLike) -> list[LaunchCommand]:
    """
    The commands in a recipe's header: what is indented there by at least two spaces.

    A backslash at the end of a line joins it with the next one; what stands behind ` #` is a remark.

    Args:
        path (`str`):
            The recipe.

    Returns:
        `list[LaunchCommand]`, in order.

    Raises:
        `ValueError`: naming a command that no shell could split.
    """
    joined: list[str] = []
    continued = False
    for line in header_lines(path):
        match = _COMMAND.match(line)
        if match is None:
            continued = False
            continue
        text = re.sub(r"\s+#\s.*$", "", match["text"])
        if continued:
            joined[-1] += f" {text.removesuffix(chr(92)).strip()}"
        else:
            joined.append(text.removesuffix("\\").strip())
        continued = text.endswith("\\")
    return [_command(text, path) for text in joined]


def _command(text: str, path: str | os.PathLike) -> LaunchCommand:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{path}: the header's command {text!r} cannot be split: {error}.") from error
    environment = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    return LaunchCommand(tuple(words), environment, Path(path))
