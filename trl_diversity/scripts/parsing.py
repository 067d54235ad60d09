# SPDX-License-Identifier: Apache-2.0
"""A strict command line parser: a value has the type of its field, and a name that nobody reads is an error."""

import argparse
import difflib
import json
import math
import os
import sys
import types
from collections.abc import Iterable, Sequence
from dataclasses import fields
from enum import Enum
from functools import partial
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from trl.scripts.utils import TrlParser

from trl_diversity.scripts.config_file import ConfigFile, ConfigValue, read_config


# What became of names that are common in recipes for older releases of TRL and for its own script.
MOVED_KEYS = {
    "max_prompt_length": "TRL truncates no prompts any more: `max_prompt_tokens` leaves out those that are too long",
    "reward_model_name_or_path": "name reward models in `reward_funcs`, beside functions",
    "datasets": "name one data set, file or directory with `dataset_name`",
}
_TRUE = ("yes", "true", "t", "y", "1", "on")
_FALSE = ("no", "false", "f", "n", "0", "off")
_DESCRIPTIONS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a mapping",
    list: "a list",
}


class StrictParser(TrlParser):
    """
    Parser of the command line and a YAML file into dataclasses, for which nothing is too small to report.

    It differs from [`~trl.TrlParser`] in that

    - a key of the file or a flag that no dataclass has is an error that names the nearest one;
    - values of the file take the same way to their types as those of the command line: `5e-1` is a number, `no` is
      false where a field is true or false and a text where it is a text, and `8.5` is no whole number;
    - flags cannot be abbreviated;
    - a value that a dataclass refuses ends the program with its message and status 2, without a traceback;
    - no file of arguments is read besides the one named with `--config`.

    Args:
        dataclass_types (`type` or `Iterable[type]`):
            Dataclasses to fill, whose fields have distinct names.
        kwargs (*optional*):
            Arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, dataclass_types: Any, **kwargs: Any):
        dataclass_types = list(dataclass_types) if isinstance(dataclass_types, Iterable) else [dataclass_types]
        kwargs.setdefault("usage", "%(prog)s [--config FILE.yaml] [--option VALUE ...]")
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        self.add_argument(
            "--config",
            metavar="FILE.yaml",
            default=argparse.SUPPRESS,
            help="YAML file with values for these options, over which those of the command line win. Its key `env` "
            "sets environment variables.",
        )
        self._hints = {name: hint for dtype in self.dataclass_types for name, hint in get_type_hints(dtype).items()}
        for action in self._actions:
            if action.dest in self._hints and action.type is not None:
                hint = self._hints[action.dest]
                action.type = partial(_argparse_type, hint=_item_hint(hint) if action.nargs == "+" else hint)

    def parse_args_and_config(self, args: Sequence[str] | None = None) -> tuple[Any, ...]:  # type: ignore[override]
        """
        Parse the command line and the file that it names.

        Args:
            args (`Sequence[str]`, *optional*):
                The command line, without the program's name. `sys.argv[1:]` by default.

        Returns:
            `tuple`: one instance of every dataclass, in order. The file's `env` has been put into `os.environ`.
        """
        try:
            path, rest = split_config(list(sys.argv[1:] if args is None else args))
            config = None if path is None else read_config(path)
        except (OSError, ValueError) as error:
            self.error(str(error))
        problems: list[str] = []
        if config is not None:
            os.environ.update(config.environment)
            problems += self._set_defaults(config)
        namespace, unknown = self.parse_known_args(rest)
        problems += self._unknown_arguments(unknown)
        if problems:
            self.error("\n  ".join(problems))
        try:
            return tuple(
                dtype(**{field.name: getattr(namespace, field.name) for field in fields(dtype) if field.init})
                for dtype in self.dataclass_types
            )
        except ValueError as error:
            self.error(str(error))

    def error(self, message: str) -> NoReturn:
        """End the program with status 2. The usage, of hundreds of options, would hide the message."""
        self.exit(2, f"{self.prog}: error: {message}\nSee `{self.prog} --help` for all options.\n")

    def _set_defaults(self, config: ConfigFile) -> list[str]:
        """Make the file's values the defaults of their options; returns what is wrong with them."""
        problems = []
        for key, value in config.values.items():
            actions = [action for action in self._actions if action.dest == key and key in self._hints]
            if not actions:
                problems.append(f"{config.path}: unknown key `{key}`. {self._nearest(key, '`{}`')}")
                continue
            try:
                typed = config_value(value, self._hints[key])
                for item in typed if isinstance(typed, list) else [typed]:
                    if item is not None:
                        self._check_value(actions[0], item)
            except (ValueError, argparse.ArgumentError) as error:
                text = error.message if isinstance(error, argparse.ArgumentError) else error
                problems.append(f"{config.path}: `{key}`: {text}")
                continue
            for action in actions:
                action.default, action.required = typed, False
        return problems

    def _unknown_arguments(self, unknown: list[str]) -> list[str]:
        flags = [argument.split("=")[0] for argument in unknown if argument.startswith("--")]
        if flags:
            return [f"unknown option `{flag}`. {self._nearest(flag.lstrip('-'), '`--{}`')}" for flag in flags]
        return [f"unexpected argument {argument!r}: a value follows its option" for argument in unknown]

    def _nearest(self, name: str, form: str) -> str:
        name = name.replace("-", "_")
        if name in MOVED_KEYS:
            return f"{MOVED_KEYS[name][0].upper()}{MOVED_KEYS[name][1:]}."
        names = [action.dest for action in self._actions if action.dest in (*self._hints, "config")]
        return f"The nearest is {form.format(difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0])}."


def split_config(args: list[str]) -> tuple[str | None, list[str]]:
    """
    Take `--config FILE` or `--config=FILE` out of a command line.

    Raises:
        `ValueError`: if the file is missing or given twice.
    """
    paths, rest = [], []
    waiting = list(args)
    while waiting:
        argument = waiting.pop(0)
        if argument == "--config":
            if not waiting or waiting[0].startswith("--"):
                raise ValueError("`--config` is followed by the path of a YAML file")
            paths.append(waiting.pop(0))
        elif argument.startswith("--config="):
            paths.append(argument.removeprefix("--config="))
        else:
            rest.append(argument)
    if len(paths) > 1:
        raise ValueError(f"`--config` was given {len(paths)} times ({', '.join(paths)}); give one file")
    return (paths[0] if paths else None), rest


def export_environment(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """
    Put the variables of the file's `env` into `os.environ`, before libraries are imported that read them once.

    A file that cannot be read ends the program here, before anything heavy is imported.
    """
    try:
        path, _ = split_config(list(sys.argv[1:] if args is None else args))
        if path is not None:
            os.environ.update(read_config(path).environment)
    except (OSError, ValueError) as error:
        print(f"{prog or os.path.basename(sys.argv[0])}: error: {error}", file=sys.stderr)
        sys.exit(2)


def config_value(value: ConfigValue, hint: Any) -> Any:
    """
    The value of a field from what a file holds.

    Args:
        value (`None`, `str`, `list` or `dict`):
            As in [`ConfigFile`].
        hint (`type`):
            Type of the field.

    Raises:
        `ValueError`: saying what is expected.
    """
    kinds = _members(hint)
    origins = [get_origin(kind) or kind for kind in kinds]
    if value is None and types.NoneType in kinds:
        return None
    if isinstance(value, list) and list in origins:
        return [config_value(item, _item_hint(hint)) for item in value]
    if isinstance(value, dict) and dict in origins:
        return value
    if isinstance(value, str):
        if list in origins and str not in kinds:
            return [convert_text(value, _item_hint(hint))]
        return convert_text(value, hint)
    got = "nothing" if value is None else f"a list: {value}" if isinstance(value, list) else f"a mapping: {value}"
    raise ValueError(f"expected {_describe(hint)}, got {got}")


def convert_text(text: str, hint: Any) -> Any:
    """
    The value of a field from a text, be it of a file or of the command line.

    Args:
        text (`str`):
            What was written.
        hint (`type`):
            Type of the field. In a union, the most particular type that fits wins; `none` and `null` are `None` where
            the field may be so and no text.

    Raises:
        `ValueError`: saying what is expected.
    """
    kinds = _members(hint)
    word = text.strip().lower()
    if types.NoneType in kinds and str not in kinds and word in ("none", "null"):
        return None
    for choice in (choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)):
        if word == str(choice).lower():
            return choice
    if bool in kinds and word in (("true", "false") if str in kinds else (*_TRUE, *_FALSE)):
        return word in _TRUE
    for kind, convert in ((int, _whole_number), (float, _number), (dict, _mapping)):
        if kind in [get_origin(kind) or kind for kind in kinds]:
            try:
                return convert(word if kind is not dict else text)
            except ValueError:
                continue
    if str in kinds:
        return text
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind(text)
    raise ValueError(f"expected {_describe(hint)}, got {text!r}")


def _argparse_type(text: str, hint: Any) -> Any:
    try:
        return convert_text(text, hint)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole_number(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        number = float(word)  # 1e2 is a whole number too
        if not number.is_integer():
            raise
        return int(number)


def _number(word: str) -> float:
    number = float(word)
    if math.isnan(number):
        raise ValueError("not a number")
    return number


def _mapping(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a mapping")
    return value


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _item_hint(hint: Any) -> Any:
    lists = [kind for kind in _members(hint) if get_origin(kind) is list]
    return get_args(lists[0])[0] if lists else str


def _describe(hint: Any) -> str:
    words = []
    for kind in _members(hint):
        origin = get_origin(kind) or kind
        if origin is Literal:
            words.append(" or ".join(repr(choice) for choice in get_args(kind)))
        elif isinstance(kind, type) and issubclass(kind, Enum):
            words.append(" or ".join(repr(member.value) for member in kind))
        elif origin in _DESCRIPTIONS:
            words.append(_DESCRIPTIONS[origin])
    return " or ".join(words) or "a value that only Python code can give"
