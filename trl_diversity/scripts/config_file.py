# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML configuration file into keys and the texts that are written in it."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


ConfigValue = None | str | list[Any] | dict[Any, Any]

_TAG_PREFIX = "tag:yaml.org,2002:"
_ACCEPTED_TAGS = {"null", "bool", "int", "float", "str", "timestamp", "merge", "value", "map", "seq"}
_ALLOWED_CONTROLS = "\n\t"
_SEPARATORS = "\u2028\u2029"  # "\L" and "\P" in double quotes
_TAB_BEFORE_LETTER = re.compile(r"\t(?=[A-Za-z])")  # "\text" and "\times" in double quotes


class _Loader(yaml.SafeLoader):
    """A safe loader that takes `1e-3` for a number, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    f"{_TAG_PREFIX}float", re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class ConfigFile:
    """
    Content of a configuration file.

    Attributes:
        path (`str`):
            Where it was read.
        values (`dict[str, None | str | list | dict]`):
            A scalar is the text in the file, so that it takes the same way to its type as a command line argument
            (`no` stays `no`, `1e2` stays `1e2`); null is `None`. Lists hold such values. A mapping has no declared
            types below it and is read as YAML reads it.
        environment (`dict[str, str]`):
            The key `env`: environment variables to set.
    """

    path: str
    values: dict[str, ConfigValue]
    environment: dict[str, str]


def read_config(path: str) -> ConfigFile:
    """
    Read a YAML file safely.

    Raises:
        `FileNotFoundError`: if there is no such file.
        `ValueError`: naming file and key, if it is no valid YAML mapping, has a key twice, a tag that builds objects,
        or a control character in a text.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no configuration file {path!r}")
    try:
        loader = _Loader(Path(path).read_text(encoding="utf-8"))
        loader.name = path
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{path}: expected a mapping of `key: value` lines")
        problems = [problem for node in _walk(root) for problem in _problems(node)]
        if problems:
            raise ValueError("\n".join(f"{path}, {problem}" for problem in problems))
        loader.flatten_mapping(root)  # `<<: *anchor`
        values = {str(key.value): _value(loader, node) for key, node in root.value}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no valid YAML: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not encoded in UTF-8: {error}") from error
    return ConfigFile(path, values, _environment(path, root, values.pop("env", {})))


def _value(loader: _Loader, node: yaml.Node) -> ConfigValue:
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == f"{_TAG_PREFIX}null" else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item) for item in node.value]
    return loader.construct_object(node, deep=True)


def _environment(path: str, root: yaml.MappingNode, value: ConfigValue) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{path}, `env`: expected a mapping of variable names to values")
    node = next((node for key, node in root.value if key.value == "env"), None)
    variables = {} if node is None else {str(key.value): item for key, item in node.value}
    for name, item in variables.items():
        if not isinstance(item, yaml.ScalarNode):
            raise ValueError(f"{path}, `env`: the value of {name} is no text")
    return {name: item.value for name, item in variables.items()}


def _walk(root: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    """All nodes with the top-level key that they belong to, each once."""
    seen: set[int] = set()
    waiting: list[tuple[str, yaml.Node]] = [("", root)]
    while waiting:
        key, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield key, node
        if isinstance(node, yaml.SequenceNode):
            waiting.extend((key, item) for item in reversed(node.value))
        elif isinstance(node, yaml.MappingNode):
            for name, item in reversed(node.value):
                waiting.extend([(key or str(name.value), item), (key or str(name.value), name)])


def _problems(place: tuple[str, yaml.Node]) -> list[str]:
    key, node = place
    where = f"line {node.start_mark.line + 1}" + (f", `{key}`" if key else "")
    if node.tag.removeprefix(_TAG_PREFIX) not in _ACCEPTED_TAGS:
        return [f"{where}: the tag {node.tag} is not accepted; write plain values"]
    if isinstance(node, yaml.MappingNode):
        return _key_problems(node)
    if isinstance(node, yaml.ScalarNode) and (found := _control_character(node)):
        return [
            f"{where}: the text holds {found}. In double quotes, YAML reads a backslash and the letter after it as "
            r"one character (`\b` of `\boxed` as a backspace). Write the text in single quotes or as a block (`|`), "
            "where a backslash stays a backslash."
        ]
    return []


def _key_problems(node: yaml.MappingNode) -> list[str]:
    problems = []
    first_lines: dict[str, int] = {}
    for name, _ in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode):
            problems.append(f"line {line}: a key is a name, not a list or a mapping")
        elif name.value in first_lines and name.value != "<<":
            problems.append(f"line {line}: the key `{name.value}` was given in line {first_lines[name.value]} already")
        else:
            first_lines[name.value] = line
    return problems


def _control_character(node: yaml.ScalarNode) -> str | None:
    """Name of the first character that a text for a model or a path does not hold on purpose."""
    for character in node.value:
        is_control = unicodedata.category(character) == "Cc" and character not in _ALLOWED_CONTROLS
        if is_control or character in _SEPARATORS:
            return f"the control character U+{ord(character):04X}"
    if node.style == '"' and _TAB_BEFORE_LETTER.search(node.value):
        return "a tab before a letter"
    if node.style == '"' and re.search(r"(?<!\\)(?:\\\\)*\\_", _source(node)):
        return "a no-break space"
    return None


def _source(node: yaml.Node) -> str:
    """The node as it is written in the file."""
    text: Any = node.start_mark.buffer  # set, because the loader was given a text
    return text[node.start_mark.pointer : node.end_mark.pointer]
