# SPDX-License-Identifier: Apache-2.0
"""A callback that logs the early signs of a policy that fools its diversity reward."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from trl_diversity.diversity.groups import completion_text, prompt_text
from trl_diversity.diversity.ngrams import novel_ngram_fractions
from trl_diversity.equivalence.answer import last_boxed


_ANSWER_END = "</answer>"
_DECAY = 0.9  # of the running averages: they reach about ten generations back


class RewardHackingWatch(TrainerCallback, ExportableState):
    """
    Logs `watch/*` for every generation of a [`DarlingTrainer`] or any other `GRPOTrainer`.

    - `watch/words`: mean length.
    - `watch/tail_words`, `watch/tail_novelty`: words after the final answer, and the share of their n-grams that no
      other completion of the group has there. N-gram rewards were hacked with random text in that place
      (arXiv 2509.02534, appendix G).
    - `watch/mixed_scripts`: share of a completion's letters outside of its main script; `watch/other_script`: share of
      completions whose main script is not the prompt's. Another language is new to n-grams and to many classifiers.
    - `watch/quality_for_diversity`: share of completions with less quality and more diversity than the running
      averages of the generations before. About a quarter if the two have nothing to do with each other; it rises
      where one is traded for the other.

    The running averages are saved with the trainer's state and restored on resume.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            The trainer to watch: `trainer.add_callback(RewardHackingWatch(trainer))`. The last metric needs a
            [`DarlingTrainer`] with a diversity measure.
        ngram_n (`int`, *optional*, defaults to 4):
            Words per n-gram.

    Example:

    ```python
    trainer = DarlingTrainer(model="HuggingFaceTB/SmolLM2-135M-Instruct", reward_funcs=reward, train_dataset=dataset)
    trainer.add_callback(RewardHackingWatch(trainer))
    trainer.train()
    ```
    """

    def __init__(self, trainer: Any = None, ngram_n: int = 4):
        self.trainer = trainer
        self.ngram_n = ngram_n
        self.averages: dict[str, float] = {}
        self._seen: int | None = None

    def state(self) -> dict[str, Any]:
        """What is saved."""
        return {"args": {"ngram_n": self.ngram_n}, "attributes": {"averages": self.averages}}

    def on_train_begin(  # type: ignore[override]
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take up the averages of a resumed run."""
        callbacks: Any = state.stateful_callbacks
        saved = callbacks.get(type(self).__name__, {"attributes": {}})["attributes"]
        if state.global_step > 0:
            self.averages = dict(saved.get("averages", {}))
        # Transformers saves only the callbacks that the state knows by name
        callbacks.setdefault(type(self).__name__, self.state())

    def on_step_end(  # type: ignore[override]
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the metrics of this step's generation, unless it is the one of the step before."""
        if self.trainer is None:
            raise ValueError(
                "RewardHackingWatch has no trainer. `restore_callback_states_from_checkpoint` makes callbacks anew, "
                "without theirs: leave it off, this callback restores itself."
            )
        logs = self.trainer._logs
        if not logs["completion"] or self._fingerprint() == self._seen:
            return
        self._seen = self._fingerprint()
        extra = logs["extra"]
        metrics = watch_metrics(
            [prompt_text(prompt) for prompt in logs["prompt"]],
            [completion_text(completion) for completion in logs["completion"]],
            self.trainer.num_generations,
            self.ngram_n,
        )
        metrics |= self._trade(list(extra.get("quality", [])), list(extra.get("diversity", [])))
        for name, value in metrics.items():
            self.trainer._metrics["train"][f"watch/{name}"].append(value)

    def on_evaluate(  # type: ignore[override]
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """What an evaluation has generated is no generation of training."""
        self._seen = self._fingerprint()

    def _fingerprint(self) -> int:
        return hash(str(list(self.trainer._logs["completion"])))

    def _trade(self, quality: list[float | None], diversity: list[float | None]) -> dict[str, float]:
        """Share of completions that are worse and more diverse than the averages, which then move on."""
        known = [
            (one, other)
            for one, other in zip(quality, diversity, strict=True)
            if one is not None and other is not None and one == one and other == other
        ]
        if not known:
            return {}
        metrics = {}
        if self.averages:
            traded = [one < self.averages["quality"] and other > self.averages["diversity"] for one, other in known]
            metrics["quality_for_diversity"] = fmean(traded)
        for index, name in enumerate(("quality", "diversity")):
            mean = fmean(pair[index] for pair in known)
            self.averages[name] = _DECAY * self.averages.get(name, mean) + (1 - _DECAY) * mean
        return metrics


def watch_metrics(
    prompts: Sequence[str], completions: Sequence[str], group_size: int, ngram_n: int = 4
) -> dict[str, float]:
    """
    The metrics of one generation that need no reward.

    Args:
        prompts (`Sequence[str]`), completions (`Sequence[str]`):
            Texts in order, those of a group side by side.
        group_size (`int`):
            Completions per prompt.
        ngram_n (`int`, *optional*, defaults to 4):
            Words per n-gram.

    Returns:
        `dict[str, float]`: `words`, `mixed_scripts` and `other_script`, the latter two in `[0, 1]`; `tail_words` and
        `tail_novelty` if a completion has a final answer.
    """
    scripts = [_scripts(completion) for completion in completions]
    metrics = {"words": fmean(len(completion.split()) for completion in completions)}
    written = [counts for counts in scripts if counts]
    if written:
        metrics["mixed_scripts"] = fmean(1 - max(counts.values()) / counts.total() for counts in written)
        asked = [_main_script(_scripts(prompt)) for prompt in prompts]
        pairs = [(script, _main_script(counts)) for script, counts in zip(asked, scripts, strict=True)]
        metrics["other_script"] = fmean(None not in pair and pair[0] != pair[1] for pair in pairs)
    tails = [text_after_answer(completion) for completion in completions]
    answered = [tail for tail in tails if tail is not None]
    if answered:
        metrics["tail_words"] = fmean(len(tail.split()) for tail in answered)
        novelty = [
            value
            for start in range(0, len(tails), group_size)
            for tail, value in _tail_novelty(tails[start : start + group_size], ngram_n)
            if tail
        ]
        metrics["tail_novelty"] = fmean(novelty) if novelty else 0.0
    return metrics


def text_after_answer(text: str) -> str | None:
    """What follows the last `</answer>`, or else the last `\\boxed{}`; `None` if there is neither."""
    before, tag, after = text.rpartition(_ANSWER_END)
    if tag:
        return after.strip()
    content = last_boxed(text)
    if content is None:
        return None
    end = f"{content}}}"
    return text[text.rindex(end) + len(end) :].strip()


def _tail_novelty(tails: Sequence[str | None], ngram_n: int) -> list[tuple[str | None, float]]:
    return list(zip(tails, novel_ngram_fractions([tail or "" for tail in tails], ngram_n), strict=True))


def _scripts(text: str) -> Counter[str]:
    """Letters of a text by script."""
    return Counter(_script(character) for character in text if character.isalpha())


def _main_script(counts: Counter[str]) -> str | None:
    return counts.most_common(1)[0][0] if counts else None


@cache
def _script(letter: str) -> str:
    """First word of the letter's Unicode name: LATIN, CYRILLIC, CJK. Japanese kana count as CJK."""
    word = unicodedata.name(letter, "UNKNOWN").split()[0]
    return "CJK" if word in ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA") else word
