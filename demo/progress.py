# SPDX-License-Identifier: Apache-2.0
"""Progress bars for the demo's trainers, in place of the log that they print at every step."""

from collections.abc import Callable
from typing import Any

from transformers import PrinterCallback, ProgressCallback


class LiveProgress(ProgressCallback):
    """
    A progress bar with a short text behind it.

    Args:
        text (`Callable[[], str]`):
            Called after every step for the text.
    """

    def __init__(self, text: Callable[[], str] = str):
        super().__init__()
        self._text = text

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the text instead of printing the log."""
        if self.training_bar is not None:
            self.training_bar.set_postfix_str(self._text())


def show_progress(trainer: Any, text: Callable[[], str] = str) -> None:
    """Give a trainer this progress bar and take away what prints its log."""
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(LiveProgress(text))
