# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that draw completions: which model, and how it decodes."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trl_diversity.evaluation.sampling import PRESETS, Sampling, sampling_from


@dataclass
class GenerationArguments:
    """
    Arguments for drawing completions.

    Args:
        backend (`str`, *optional*):
            `"transformers"`, `"vllm"` or `"server"`. The server by default if there is a `base_url`.
        base_url (`str`, *optional*):
            Address of a server with OpenAI's chat interface. Its key is read from the variable `OPENAI_API_KEY`.
        base_model (`str`, *optional*):
            Model under an adapter.
        preset (`str`, *optional*):
            Decoding settings by name; the command's own by default. The options below win over it.
        num_generations (`int`, *optional*), temperature (`float`, *optional*), top_p (`float`, *optional*),
        top_k (`int`, *optional*), min_p (`float`, *optional*), max_tokens (`int`, *optional*), seed (`int`,
        *optional*):
            See [`Sampling`].
        system_prompt (`str`, *optional*):
            System message before every prompt.
        chat_template_kwargs (`dict`, *optional*):
            Further arguments of the chat template, such as `{"enable_thinking": false}`; a reward model's template
            gets them too, as in training.
        generation_batch_size (`int`, *optional*, defaults to `16`):
            Completions at a time (transformers), or requests at a time (server).
        device (`str`, *optional*), dtype (`str`, *optional*):
            Of every model that is loaded.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether code from checkpoints may run.
    """

    backend: Literal["transformers", "vllm", "server"] | None = field(
        default=None, metadata={"help": "What draws completions. Default: the server if there is a `base_url`."}
    )
    base_url: str | None = field(
        default=None,
        metadata={"help": "Server with OpenAI's chat interface; its key is read from OPENAI_API_KEY."},
    )
    base_model: str | None = field(default=None, metadata={"help": "Model under an adapter."})
    preset: Literal[tuple(PRESETS)] | None = field(  # type: ignore[valid-type]
        default=None, metadata={"help": "Decoding settings by name. The options below win over it."}
    )
    num_generations: int | None = field(default=None, metadata={"help": "Completions per prompt."})
    temperature: float | None = field(default=None, metadata={"help": "Sampling temperature."})
    top_p: float | None = field(default=None, metadata={"help": "Nucleus, in (0, 1]."})
    top_k: int | None = field(default=None, metadata={"help": "Likeliest tokens to draw from; 0 is all."})
    min_p: float | None = field(default=None, metadata={"help": "Least share of the likeliest token's probability."})
    max_tokens: int | None = field(default=None, metadata={"help": "Most tokens of a completion."})
    seed: int | None = field(default=None, metadata={"help": "Seed of the draws."})
    system_prompt: str | None = field(default=None, metadata={"help": "System message before every prompt."})
    chat_template_kwargs: dict[str, Any] | None = field(
        default=None, metadata={"help": 'Arguments of the chat template, such as {"enable_thinking": false}.'}
    )
    generation_batch_size: int = field(
        default=16, metadata={"help": "Completions at a time (transformers), or requests at a time (server)."}
    )
    device: str | None = field(default=None, metadata={"help": "Device of the models. Default: GPU if there is one."})
    dtype: str | None = field(default=None, metadata={"help": "Data type of the models."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Whether code from checkpoints may run."})

    def __post_init__(self):
        if self.generation_batch_size < 1:
            raise ValueError(f"`generation_batch_size` is at least 1; got {self.generation_batch_size}.")
        if self.base_url is not None and self.backend not in (None, "server"):
            raise ValueError(f"`base_url` belongs to the backend `server`, not to {self.backend!r}.")

    def sampling(self, default_preset: str) -> Sampling:
        """The decoding settings, beginning with a preset."""
        names = ("num_generations", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed")
        return sampling_from(self.preset or default_preset, **{name: getattr(self, name) for name in names})

    def make_generator(self, model: str | None) -> Any:
        """What draws completions of a model."""
        from trl_diversity.evaluation.generation import make_generator

        return make_generator(
            model,
            self.backend,
            self.base_url,
            self.base_model,
            self.device,
            self.dtype,
            self.trust_remote_code,
            self.generation_batch_size,
            self.chat_template_kwargs,
        )

    def load_quality(self, reward_model: str) -> Any:
        """What scores completions, on the same device."""
        from trl_diversity.scripts.quality import load_quality

        return load_quality(reward_model, self.device, self.dtype, self.trust_remote_code, self.chat_template_kwargs)

    def prompt_for(self, text: Any) -> Any:
        """A prompt with the system message before it, if there is one."""
        from trl_diversity.evaluation.generation import as_messages

        if self.system_prompt is None:
            return text
        return [{"role": "system", "content": self.system_prompt}, *as_messages(text)]

    def described(self, model: str | None, default_preset: str) -> dict[str, Any]:
        """What the completions depend on, as it is written beside them. A user in the URL is left out."""
        url = None if self.base_url is None else self.base_url.rpartition("@")[2]
        return {
            "model": model,
            "base_model": self.base_model,
            "base_url": url,
            "system_prompt": self.system_prompt,
            "chat_template_kwargs": self.chat_template_kwargs,
            **asdict(self.sampling(default_preset)),
        }
