# SPDX-License-Identifier: Apache-2.0
"""Reward models of the shape of Athene: a Llama without a language head, and a reward read at one special token."""

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutputWithPast

from trl_diversity.rewards.truncation import keep_the_end


# <|reserved_special_token_1|> of Llama 3, the CLS token of Nexusflow/Athene-RM-8B and -70B.
REWARD_TOKEN_ID = 128003
HEAD_WEIGHT = "v_head.weight"


class AtheneRewardModel(LlamaPreTrainedModel):
    """
    `LlamaModel` and a linear head without bias; the reward is the head's value at token 128003.

    The token is appended to every row that does not end with it, so a caller hands over the chat-templated
    conversation as to any other reward model. A conversation that is too long is cut on the left; its first token, if
    it is the beginning-of-text token, and the reward token stay.

    Args:
        config ([`~transformers.LlamaConfig`]):
            Of the checkpoint. `max_position_embeddings` bounds a conversation, the reward token included.
    """

    config: LlamaConfig

    def __init__(self, config: LlamaConfig):
        super().__init__(config)
        self.model = LlamaModel(config)
        self.v_head = nn.Linear(config.hidden_size, 1, bias=False)
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> SequenceClassifierOutputWithPast:
        """
        Rewards of conversations.

        Args:
            input_ids (`torch.Tensor` of shape `(rows, tokens)`, int64):
                Conversations, padded on either side.
            attention_mask (`torch.Tensor` of shape `(rows, tokens)`, *optional*):
                1 = counts. All tokens count by default.

        Returns:
            [`~transformers.modeling_outputs.SequenceClassifierOutputWithPast`] with `logits` of shape `(rows, 1)`.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        ids, mask, ends = self._with_reward_token(input_ids, mask)
        hidden = self.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        rows = torch.arange(len(ids), device=ids.device)
        return SequenceClassifierOutputWithPast(logits=self.v_head(hidden[rows, ends]))  # (rows, 1)

    def _with_reward_token(
        self, input_ids: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows padded on the right that end with the reward token, their mask, and where the token is."""
        rows = [ids[keep.bool()] for ids, keep in zip(input_ids, mask, strict=True)]
        rows = [ids[:-1] if len(ids) and ids[-1] == REWARD_TOKEN_ID else ids for ids in rows]
        texts = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=REWARD_TOKEN_ID)
        lengths = torch.tensor([len(ids) for ids in rows], device=input_ids.device)
        inputs = {"input_ids": texts, "attention_mask": _mask(lengths, texts.shape[1])}
        limit = self.config.max_position_embeddings - 1
        if texts.shape[1]:
            texts = keep_the_end(inputs, limit, self.config.bos_token_id)["input_ids"]
        ends = lengths.clamp(max=limit)
        padded = torch.cat([texts, texts.new_full((len(rows), 1), REWARD_TOKEN_ID)], dim=1)
        # Padding, too, is the reward token: the first one of a row is the one that is read
        padded[torch.arange(padded.shape[1], device=ends.device)[None] >= ends[:, None]] = REWARD_TOKEN_ID
        return padded, _mask(ends + 1, padded.shape[1]), ends


def _mask(lengths: torch.Tensor, width: int) -> torch.Tensor:
    return (torch.arange(width, device=lengths.device)[None] < lengths[:, None]).long()
