# SPDX-License-Identifier: Apache-2.0
"""What every command checks of the files that it is given."""

import os


def require_file(path: str, option: str | None = None) -> None:
    """
    Make sure that a file is there.

    Args:
        path (`str`):
            Where it should be.
        option (`str`, *optional*):
            Option that named it.

    Raises:
        `ValueError`: naming the file and the option.
    """
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path!r}" + (f" (`{option}`)." if option else "."))


def require_input_and_output(source: str, target: str) -> None:
    """
    Make sure that there is something to read, and that it is not what will be written.

    Raises:
        `ValueError`: naming the file.
    """
    require_file(source, "input")
    if os.path.realpath(source) == os.path.realpath(target):
        raise ValueError(f"`input` and `output` are the same file, {source!r}.")
