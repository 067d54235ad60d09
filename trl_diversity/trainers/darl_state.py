# SPDX-License-Identifier: Apache-2.0
"""What Darl's reward remembers between steps, saved with the trainer's state and restored on resume."""

import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from trl_diversity.likelihood import StandardDeviationFilter


logger = logging.getLogger(__name__)


class DarlState(TrainerCallback, ExportableState):
    """
    The moving average of the standard-deviation filter, and the likelihood of each reference without reasoning.

    Args:
        std_filter_beta (`float`, *optional*):
            Setting of the filter. `None`: no group is filtered.

    Attributes:
        std_filter ([`StandardDeviationFilter`] or `None`):
            The filter.
        baseline (`dict[str, float]`):
            r(y*|x) under the initial policy, by [`row_key`].
    """

    def __init__(self, std_filter_beta: float | None = None):
        self.std_filter = None if std_filter_beta is None else StandardDeviationFilter(std_filter_beta)
        self.baseline: dict[str, float] = {}

    @property
    def filter_state(self) -> dict[str, Any] | None:
        """State of the filter as plain values."""
        return None if self.std_filter is None else self.std_filter.state_dict()

    @filter_state.setter
    def filter_state(self, state: dict[str, Any] | None) -> None:
        if self.std_filter is not None and state is not None:
            self.std_filter.load_state_dict(state)

    def state(self) -> dict[str, Any]:
        """What is saved: the form that transformers gives back to the constructor and the attributes."""
        return {
            "args": {"std_filter_beta": None if self.std_filter is None else self.std_filter.beta},
            "attributes": {"filter_state": self.filter_state, "baseline": self.baseline},
        }

    def on_train_begin(  # type: ignore[override]
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take up the saved state of a resumed run; transformers itself restores callbacks only if asked to."""
        if state.global_step == 0:
            return
        callbacks: Any = state.stateful_callbacks
        saved = callbacks.get(type(self).__name__, {"attributes": {}})["attributes"]
        for attribute, value in saved.items():
            setattr(self, attribute, value)
        # Transformers saves only the callbacks that the state knows by name
        callbacks.setdefault(type(self).__name__, self.state())
        if self.std_filter is not None and saved.get("filter_state") is None:
            logger.warning(
                "The checkpoint holds no state of Darl's standard-deviation filter: its moving average starts anew, "
                "and the rewards of this run will differ from those of an uninterrupted one."
            )
