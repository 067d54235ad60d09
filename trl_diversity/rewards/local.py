# SPDX-License-Identifier: Apache-2.0
"""A quality reward from a reward model on a device of its own."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch

from trl_diversity.devices import process_device
from trl_diversity.rewards.conversation import conversation_text, ensure_pad_token, point_out_padding
from trl_diversity.rewards.loading import load_reward_model


class LocalRewardModel:
    """
    Raw scalar rewards from a reward model that the trainer neither moves nor shards.

    A reward function for TRL. It gives what TRL gives for the same model as a module, up to rounding, but on a device
    of its own, and in batches of texts of similar length instead of all texts at once. Every process loads the whole
    model.

    Args:
        name_or_path (`str`):
            Hub name or directory, as for [`load_reward_model`].
        device (`str` or `torch.device`, *optional*):
            Where it lies, such as `"cpu"` or `"cuda:1"`. This process's GPU by default, or the CPU if there is none.
        dtype (`str`, *optional*):
            Data type of the weights, or `"auto"`. That of the checkpoint by default.
        batch_size (`int`, *optional*, defaults to `8`):
            Texts in a forward pass.
        chat_template_kwargs (`Mapping`, *optional*):
            Further arguments of the chat template.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from the checkpoint may run.

    Raises:
        `ValueError`: if there is no such device, the checkpoint is no reward model, or `batch_size` is below 1.

    Example:

    ```python
    trainer = DarlingTrainer(model=..., reward_funcs=LocalRewardModel("owner/reward-model", device="cuda:1"), args=...)
    ```
    """

    def __init__(
        self,
        name_or_path: str,
        *,
        device: str | torch.device | None = None,
        dtype: str | None = None,
        batch_size: int = 8,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        from transformers import AutoTokenizer

        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; expected at least 1")
        self.device = _known_device(device)
        self.batch_size = batch_size
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.model: Any = load_reward_model(name_or_path, dtype=dtype, trust_remote_code=trust_remote_code)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
        ensure_pad_token(self.tokenizer)
        point_out_padding(self.tokenizer, name_or_path)
        # The reward is read at the last token that is no padding
        self.model.config.get_text_config().pad_token_id = self.tokenizer.pad_token_id
        self.model.to(self.device).eval()
        self.__name__ = PurePath(name_or_path).name  # TRL logs `rewards/<name>`

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """
        Score completions.

        Args:
            prompts (`Sequence`), completions (`Sequence`):
                Texts, or lists of messages.
            kwargs (*optional*):
                What else TRL hands to reward functions; not used.

        Returns:
            `list[float]`: the reward model's logit for every completion.
        """
        texts = [
            conversation_text(prompt, completion, self.tokenizer, self.chat_template_kwargs)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        by_length = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        rewards = [0.0] * len(texts)
        for start in range(0, len(texts), self.batch_size):
            indices = by_length[start : start + self.batch_size]
            for index, reward in zip(indices, self._score([texts[index] for index in indices]), strict=True):
                rewards[index] = reward
        return rewards

    @torch.inference_mode()
    def _score(self, texts: list[str]) -> list[float]:
        batch = self.tokenizer(
            text=[text or self.tokenizer.pad_token for text in texts],  # a batch of empty texts would have no token
            return_tensors="pt",
            padding=True,
            padding_side="right",
            add_special_tokens=False,
        )
        return self.model(**batch.to(self.device)).logits[:, 0].float().tolist()


def _known_device(device: str | torch.device | None) -> torch.device:
    try:
        found = torch.device(device or process_device())
        torch.empty(0, device=found)  # a name may be right and the device not be there
    except (RuntimeError, AssertionError) as error:  # the latter from a torch that is built without that device
        raise ValueError(f"there is no device {str(device)!r} here for a reward model ({error})") from error
    return found
