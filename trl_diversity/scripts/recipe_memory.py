# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of the memory that training needs on a GPU. An estimate for planning, not a promise."""

from dataclasses import dataclass
from typing import Any


GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelShape:
    """
    Sizes of a decoder of the Llama or Qwen family.

    `kv_heads * head_dim` is the width of keys and values, `heads * head_dim` that of queries.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer; norms and biases, below a thousandth, are left out."""
        attention = 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def parameters(self) -> int:
        """Weights of the model."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters


# From the models' config.json.
KNOWN_SHAPES = {
    "meta-llama/Llama-3.1-8B-Instruct": ModelShape(128256, 4096, 14336, 32, 32, 8, 128),
    "meta-llama/Llama-3.3-70B-Instruct": ModelShape(128256, 8192, 28672, 80, 64, 8, 128),
    "Nexusflow/Athene-RM-8B": ModelShape(128256, 4096, 14336, 32, 32, 8, 128),
    "Qwen/Qwen3-4B-Base": ModelShape(151936, 2560, 9728, 36, 32, 8, 128, tied=True),
    "Qwen/Qwen3-14B-Base": ModelShape(151936, 5120, 17408, 40, 40, 8, 128),
    "Qwen/Qwen2.5-7B": ModelShape(152064, 3584, 18944, 28, 28, 4, 128),
}


@dataclass(frozen=True)
class MemoryPlan:
    """
    What of a recipe decides about memory.

    Args:
        shape ([`ModelShape`]):
            The policy.
        num_processes (`int`):
            Training processes, one a GPU.
        sharded (`bool`):
            Whether weights, gradients and optimizer state are sharded over all processes (ZeRO-3, FSDP2) or whole on
            each (DDP).
        micro_batch (`int`):
            Completions in a micro-batch of one process.
        prompt_tokens (`int`):
            Most tokens of a prompt.
        completion_tokens (`int`):
            Most tokens of a completion.
        dtype (`str`, *optional*, defaults to `"float32"`):
            Data type in which the policy is loaded.
        activation_checkpointing (`bool`, *optional*, defaults to `True`):
            Whether a layer keeps only its input and is computed again in the backward pass.
        reference_model (`bool`, *optional*, defaults to `False`):
            Whether a frozen copy is held for the KL term.
        adapter_parameters (`int`, *optional*):
            Weights that are trained where it is not all of them (LoRA).
        reward_parameters (`int`, *optional*, defaults to `0`):
            Weights of reward models in the trainer.
        reward_dtype (`str`, *optional*, defaults to `"bfloat16"`):
            Data type of the reward models.
    """

    shape: ModelShape
    num_processes: int
    sharded: bool
    micro_batch: int
    prompt_tokens: int
    completion_tokens: int
    dtype: str = "float32"
    activation_checkpointing: bool = True
    reference_model: bool = False
    adapter_parameters: int | None = None
    reward_parameters: int = 0
    reward_dtype: str = "bfloat16"

    def gigabytes(self) -> dict[str, float]:
        """
        Memory by what needs it, on one GPU.

        Returns:
            `dict[str, float]` in GiB: `weights`, `gradients_and_optimizer`, `gathered_layers`, `reference_model`,
            `reward_models`, `activations`, `logits` and their sum, `total`. CUDA's own context (about 1 GiB), cuDNN
            work space and fragmentation are not in it.
        """
        parts = {name: bytes_ / GIB for name, bytes_ in self._bytes().items()}
        return {**parts, "total": sum(parts.values())}

    def _bytes(self) -> dict[str, float]:
        shape, split = self.shape, self.num_processes if self.sharded else 1
        width = BYTES[self.dtype]
        trained = shape.parameters if self.adapter_parameters is None else self.adapter_parameters
        tokens = self.micro_batch * (self.prompt_tokens + self.completion_tokens)
        return {
            "weights": shape.parameters * width / split,
            # A gradient and Adam's two moments, in the data type of what is trained; adapters are float32
            "gradients_and_optimizer": 3 * trained * (width if self.adapter_parameters is None else 4) / split,
            # The layer at work and the one fetched ahead, in bfloat16
            "gathered_layers": 2 * shape.layer_parameters * 2 if self.sharded else 0,
            "reference_model": shape.parameters * width / split if self.reference_model else 0,
            # Whole on every GPU: DeepSpeed may shard them, FSDP2 and DDP do not
            "reward_models": self.reward_parameters * BYTES[self.reward_dtype],
            "activations": tokens * self._activation_bytes_per_token(),
            # bfloat16 logits, their float32 log-softmax and its gradient, of completion tokens alone
            "logits": self.micro_batch * self.completion_tokens * shape.vocab_size * (2 + 4 + 4),
        }

    def _activation_bytes_per_token(self) -> int:
        """What a token leaves for the backward pass in bfloat16; no attention maps (flash attention, SDPA)."""
        shape = self.shape
        one_layer = 2 * (
            6 * shape.hidden_size  # inputs of norms and projections, residuals
            + 2 * shape.head_dim * (shape.heads + shape.kv_heads)
            + 4 * shape.intermediate_size
        )
        if self.activation_checkpointing:
            return shape.layers * 2 * shape.hidden_size + one_layer
        return shape.layers * one_layer


def shape_of(config: Any) -> ModelShape:
    """The shape that a `PretrainedConfig` of the Llama or Qwen family describes."""
    config = config.get_text_config()
    heads = config.num_attention_heads
    return ModelShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        tied=bool(config.tie_word_embeddings),
    )


def lora_parameters(shape: ModelShape, rank: int) -> int:
    """Weights of LoRA adapters on all linear layers: `rank` times the sum of both sides of every matrix."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sides = 2 * (shape.hidden_size + query) + 2 * (shape.hidden_size + key)
    return shape.layers * rank * (sides + 3 * (shape.hidden_size + shape.intermediate_size))
