# SPDX-License-Identifier: Apache-2.0
"""Per-token probabilities of a completion's own answer and of the reference, under the policy or another model."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from trl_diversity.likelihood.model_inspection import (
    base_model,
    evaluating,
    forward_parameters,
    has_virtual_tokens,
    policy_adapter,
    shared_pass_obstacle,
)
from trl_diversity.likelihood.packing import Batch, Branches, additive_mask, micro_batches, pack, read_probabilities
from trl_diversity.likelihood.splice import ScoringRow


logger = logging.getLogger(__name__)

_PATHS = ("auto", "fast", "two_pass")


@dataclass(frozen=True)
class RowScores:
    """
    What a scorer says about one row.

    Args:
        answer (`tuple[float, ...]`):
            Probability of every token of the own answer y, in `[0, 1]`; NaN where the model's output is not finite.
            Empty if the row has no answer.
        reference (`tuple[float, ...]`):
            The same for the reference y*.
        malformed (`str`, *optional*):
            `None`, or why this scorer could not score the row (`"too_long"`, `"unencodable"`); the likelihood part of
            the reward is then 0, as for a malformed completion.
    """

    answer: tuple[float, ...] = ()
    reference: tuple[float, ...] = ()
    malformed: str | None = None


@runtime_checkable
class Scorer(Protocol):
    """Gives the probability of every answer token of some rows."""

    def score(self, rows: Sequence[ScoringRow]) -> list[RowScores]:
        """
        Score rows.

        Every rank of a distributed run calls this equally often, also with no rows.

        Args:
            rows (`Sequence[ScoringRow]`):
                See [`prepare_completion`] and [`baseline_row`].

        Returns:
            `list[RowScores]`: one for every row, in order.
        """
        ...


def _alone(value: int) -> int:
    return value


class PolicyScorer:
    """
    Scores answers with the policy itself: plain logits at temperature 1, in evaluation mode, without gradients.

    The fast path makes one pass over prompt, reasoning, own answer y and reference y* (arXiv 2601.14700 needs the
    likelihood of both); a mask keeps y* from seeing y, and the positions of y* start after the reasoning. The general
    path makes a pass for each. `"auto"` takes the fast path if the model's attention honours such a mask: its
    configuration must allow it, and a trial on ten tokens must give the logits that separate passes give.

    The forward call goes through `model` as it was given: pass the wrapped model (DDP, FSDP) where there is one. On
    several ranks every rank makes the same number of forward calls, also with fewer rows or none, if `agree_on_max` is
    given. An exception on one rank is raised after all calls have been made.

    Args:
        model (`nn.Module`):
            Causal language model, with or without PEFT adapters, a TRL fused head and wrappers. May be assigned anew:
            `scorer.model = trainer.model_wrapped`.
        path (`str`, *optional*, defaults to `"auto"`):
            `"auto"`, `"fast"` or `"two_pass"`.
        tokens_per_forward (`int`, *optional*, defaults to `8192`):
            Most tokens, padding included, in one forward call. Rows are sorted by length before they are cut into
            batches; a single longer row is a batch of its own, and so is every row of a model that takes no positions.
        pad_token_id (`int`, *optional*, defaults to `0`):
            Id that fills the batches. It is never attended to.
        adapter_name (`str`, *optional*):
            PEFT adapter to score with. By default the active one, never TRL's `"ref"`: then it is `"default"`.
        agree_on_max (`Callable[[int], int]`, *optional*):
            Returns the largest value that any rank passes; called by every rank. By default its own value.
        forward_context (`Callable[[], AbstractContextManager]`, *optional*, defaults to `nullcontext`):
            Context of each forward call, such as `accelerator.autocast`.

    Raises:
        `ValueError`: if `path` is unknown or `tokens_per_forward` is below 1.

    Example:

    ```python
    scorer = PolicyScorer(model)
    prepared = prepare_completion(prompt_ids, completion_ids, "42", tokenizer)
    scores = scorer.score([prepared.row])[0]
    aggregate(scores.reference, "mean_prob")
    ```
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        path: str = "auto",
        tokens_per_forward: int = 8192,
        pad_token_id: int = 0,
        adapter_name: str | None = None,
        agree_on_max: Callable[[int], int] = _alone,
        forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        if path not in _PATHS:
            raise ValueError(f"path={path!r} is unknown; expected one of {', '.join(_PATHS)}")
        if tokens_per_forward < 1:
            raise ValueError(f"tokens_per_forward={tokens_per_forward}; expected at least 1")
        self.path = path
        self.tokens_per_forward = tokens_per_forward
        self.pad_token_id = pad_token_id
        self.adapter_name = adapter_name
        self.agree_on_max = agree_on_max
        self.forward_context = forward_context
        self.model = model

    @property
    def model(self) -> nn.Module:
        """The model that is called."""
        return self._model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._model = model
        base = base_model(model)
        if getattr(base.config, "is_encoder_decoder", False):
            raise ValueError(f"{type(base).__name__} is an encoder-decoder; a scorer needs a causal language model")
        if base is not getattr(self, "_base", None):
            self._base = base
            self._is_fast: bool | None = None
        self._parameters = forward_parameters(model)
        self._takes_positions = "position_ids" in self._parameters and not has_virtual_tokens(model)

    @property
    def is_fast(self) -> bool | None:
        """Whether the fast path is in use; `None` before the first call of `score`."""
        return self._is_fast

    def score(self, rows: Sequence[ScoringRow]) -> list[RowScores]:
        """
        Probabilities of the answer tokens of each row.

        Args:
            rows (`Sequence[ScoringRow]`):
                Rows to score. May be empty. Every rank must make this call.

        Returns:
            `list[RowScores]`: one for every row, in order. Where the model's output for a row is not finite, that
            row's probabilities are NaN.

        Raises:
            `ValueError`: if a row has no prefix, or `path="fast"` and the model cannot do it.
        """
        with torch.no_grad(), evaluating(self.model), policy_adapter(self.model, self.adapter_name):
            if self._is_fast is None:
                self._is_fast = self._choose_path()
            found, error = self._run(rows, self._is_fast)
        if error is not None:
            raise error
        return [
            RowScores(
                tuple(found.get((index, "answer"), ())[row.answer_lead :]),
                tuple(found.get((index, "reference"), ())[row.reference_lead :]),
            )
            for index, row in enumerate(rows)
        ]

    def _run(
        self, rows: Sequence[ScoringRow], fast: bool
    ) -> tuple[dict[tuple[int, str], list[float]], Exception | None]:
        """Make as many forward calls as the rank with the most work; keep an exception until they are all made."""
        found: dict[tuple[int, str], list[float]] = {}
        batches: list[list[Branches]] = []
        error: Exception | None = None
        try:
            # Padding on the left moves the tokens of a model that is told no positions: such rows go one by one.
            batches = micro_batches(_branches(rows, fast), self.tokens_per_forward if self._takes_positions else 1)
        except Exception as failure:
            error = failure
        for number in range(self.agree_on_max(len(batches))):
            try:
                if error is None and number < len(batches):
                    batch = pack(batches[number], self.pad_token_id, self._device)
                    found.update(read_probabilities(batches[number], batch, self._logits(batch)))
                else:
                    self._logits(pack([_SMALLEST], self.pad_token_id, self._device))
            except Exception as failure:
                error = error or failure
        return found, error

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _logits(self, batch: Batch) -> torch.Tensor:
        """Plain logits `(B, K, V)` at the columns that predict a token: the fused head of TRL is not asked for."""
        _, first, second = batch.sizes
        arguments: dict[str, Any] = {"input_ids": batch.input_ids}
        if self._takes_positions:
            arguments["position_ids"] = batch.position_ids
        if "use_cache" in self._parameters:
            arguments["use_cache"] = False
        if "output_router_logits" in self._parameters:
            arguments["output_router_logits"] = False
        if first and second:
            visible = batch.visible()
            is_eager = self._base.config.get_text_config()._attn_implementation == "eager"
            arguments["attention_mask"] = additive_mask(visible, self._base.dtype) if is_eager else visible
            arguments["logits_to_keep"] = torch.tensor(batch.predicting, device=batch.input_ids.device)
        else:
            arguments["attention_mask"] = batch.present.long()
            if "logits_to_keep" in self._parameters:
                arguments["logits_to_keep"] = first + second + 1
        with self.forward_context():
            logits: torch.Tensor = self.model(**arguments).logits
        return logits if first and second else logits[:, -(first + second + 1) : -1]

    def _choose_path(self) -> bool:
        if self.path == "two_pass":
            return False
        obstacle = shared_pass_obstacle(self.model) or self._trial()
        if self.agree_on_max(int(obstacle is not None)) == 0:
            return True
        reason = obstacle or "another rank could not"
        if self.path == "fast":
            raise ValueError(f"path='fast', but this model cannot score in one pass: {reason}; use path='auto'")
        logger.info("likelihoods take two passes, not one: %s", reason)
        return False

    def _trial(self) -> str | None:
        """Compare one pass over ten tokens with separate passes; `None` if its logits are right, else the reason."""
        vocabulary = self._base.config.get_text_config().vocab_size
        ids = [(11 * place + 3) % vocabulary for place in range(10)]
        prefix, first, second = ids[:4], ids[4:7], ids[7:]
        trials = (
            Branches((), prefix, first, second),
            Branches((), prefix, second),
            Branches((), prefix, [*first, *second]),
        )
        try:
            together, alone, leaking = (
                self._logits(pack([trial], self.pad_token_id, self._device))[0].float() for trial in trials
            )
        except Exception as failure:
            return f"a trial failed with {type(failure).__name__}: {failure}"
        # Rows 3 and 4 of the shared pass follow the first two tokens of the second continuation.
        error = (together[3:] - alone[1:]).abs().max().item()
        leak = (leaking[4:] - alone[1:]).abs().max().item()
        if error <= max(0.25 * leak, 1e-4 * alone.abs().max().item()):
            return None
        return f"in a trial its logits were off by {error:.3g}, where a mask without effect gives {leak:.3g}"


_SMALLEST = Branches((), (0,), (0,))


def _branches(rows: Sequence[ScoringRow], fast: bool) -> list[Branches]:
    """What to score: one pass over both texts of a row on the fast path, else one over each."""
    passes = []
    for index, row in enumerate(rows):
        if not row.prefix_ids:
            raise ValueError(f"row {index} has no prefix_ids; the first token needs at least one token before it")
        parts = [
            ((index, name), ids)
            for name, ids in (("answer", row.answer_ids), ("reference", row.reference_ids))
            if len(ids)
        ]
        for together in [parts] if fast else [[part] for part in parts]:
            if together:
                keys, texts = zip(*together, strict=True)
                passes.append(Branches(keys, row.prefix_ids, *texts))
    return passes
