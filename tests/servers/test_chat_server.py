# SPDX-License-Identifier: Apache-2.0
"""Completions of a real vLLM server are drawn as asked, whatever the checkpoint's own generation settings are."""

from trl_diversity.evaluation.chat_server import ChatServer
from trl_diversity.evaluation.sampling import Sampling


def test_the_checkpoints_own_settings_are_switched_off(generation_server):
    """With them every completion would be the same: they draw the likeliest token alone."""
    chat = ChatServer(f"{generation_server}/v1", "policy")
    (drawn,) = chat(["Name an animal."], Sampling(num_generations=8, max_tokens=6, temperature=2.0))
    assert len(drawn) == 8 and len(set(drawn)) > 1
    (likeliest,) = chat(["Name an animal."], Sampling(num_generations=8, max_tokens=6, temperature=2.0, top_k=1))
    assert len(set(likeliest)) == 1
