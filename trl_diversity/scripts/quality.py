# SPDX-License-Identifier: Apache-2.0
"""Quality of completions by a reward that is named as in a recipe's `reward_funcs`, outside of a trainer."""

from collections.abc import Callable, Sequence
from typing import Any


_BATCH_SIZE = 8


def load_quality(
    name: str, device: str | None = None, dtype: str | None = None, trust_remote_code: bool = False
) -> Callable[[Sequence[Any], Sequence[str]], list[float]]:
    """
    A function of prompts and completions that gives one reward each.

    Args:
        name (`str`):
            Hub name or directory of a reward model, the dotted path of a function, or the name of one of TRL's.
        device (`str`, *optional*), dtype (`str`, *optional*), trust_remote_code (`bool`, *optional*):
            Of a reward model.

    Returns:
        `Callable[[Sequence[Any], Sequence[str]], list[float]]`: prompts are texts or conversations; functions get both
        as conversations.

    Raises:
        `ValueError`: on use, if a reward is missing or not finite.
    """
    from trl_diversity.scripts.reward_functions import resolve_reward_functions

    reward = resolve_reward_functions(
        [name], max_completion_length=4096, dtype=dtype, trust_remote_code=trust_remote_code
    )[0]
    score = (
        _of_model(reward, name, device, trust_remote_code) if hasattr(reward, "parameters") else _of_function(reward)
    )

    def checked(prompts: Sequence[Any], completions: Sequence[str]) -> list[float]:
        import math

        rewards = [math.nan if value is None else float(value) for value in score(prompts, completions)]
        if len(rewards) != len(completions) or not all(map(math.isfinite, rewards)):
            raise ValueError(f"the reward {name!r} must give {len(completions)} finite numbers; got {rewards!r:.200}")
        return rewards

    return checked


def _of_function(reward: Any) -> Callable[..., Any]:
    from trl_diversity.evaluation.generation import as_messages

    def score(prompts: Sequence[Any], completions: Sequence[str]) -> Any:
        answers = [[{"role": "assistant", "content": completion}] for completion in completions]
        return reward(prompts=[as_messages(prompt) for prompt in prompts], completions=answers)

    return score


def _of_model(model: Any, name: str, device: str | None, trust_remote_code: bool) -> Callable[..., Any]:
    import torch
    from transformers import AutoTokenizer

    from trl_diversity.evaluation.generation import as_messages

    tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()

    def score(prompts: Sequence[Any], completions: Sequence[str]) -> list[float]:
        texts = [
            tokenizer.apply_chat_template(
                [*as_messages(prompt), {"role": "assistant", "content": completion}], tokenize=False
            )
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        rewards: list[float] = []
        for start in range(0, len(texts), _BATCH_SIZE):
            batch = tokenizer(
                texts[start : start + _BATCH_SIZE],
                return_tensors="pt",
                padding=True,
                padding_side="right",
                add_special_tokens=False,
            ).to(model.device)  # the model itself cuts what is too long, on the left
            with torch.inference_mode():
                rewards += model(**batch).logits[:, 0].float().tolist()
        return rewards

    return score
