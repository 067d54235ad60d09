# SPDX-License-Identifier: Apache-2.0
"""Draws completions to evaluate: with transformers, with vLLM, or from a server with OpenAI's interface."""

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trl_diversity.evaluation.sampling import Sampling
from trl_diversity.likelihood.answer_span import ANSWER, END_ANSWER, END_THINK, THINK, assistant_tail
from trl_diversity.likelihood.token_text import decode


Prompt = str | list[dict[str, Any]]
Generator = Callable[[Sequence[Prompt], Sampling], list[list[str]]]
Backend = Literal["transformers", "vllm", "server"]


def make_generator(
    model: str | None,
    backend: Backend | None = None,
    base_url: str | None = None,
    base_model: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    batch_size: int = 16,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Generator:
    """
    What draws completions of a model.

    Args:
        model (`str`, *optional*):
            Hub name or directory, or the name under which a server has it; a server with one model needs none.
        backend (`str`, *optional*):
            `"transformers"`, `"vllm"` or `"server"`. By default the server if there is a `base_url`.
        base_url (`str`, *optional*):
            Address of the server, such as `"http://localhost:8000/v1"`. Its key is read from `OPENAI_API_KEY`.
        base_model (`str`, *optional*):
            Model under the adapter that `model` names. Transformers only.
        device (`str`, *optional*), dtype (`str`, *optional*), trust_remote_code (`bool`, *optional*):
            Of the loaded model.
        batch_size (`int`, *optional*, defaults to 16):
            Completions that transformers draws, or requests that a server gets, at the same time.
        chat_template_kwargs (`Mapping`, *optional*):
            Further arguments of the chat template, such as `{"enable_thinking": False}`.

    Returns:
        `Callable[[Sequence[Prompt], Sampling], list[list[str]]]`: `num_generations` completions for every prompt.

    Raises:
        `ValueError`: if the arguments do not fit together.
    """
    backend = backend or ("server" if base_url else "transformers")
    if backend == "server":
        if base_url is None:
            raise ValueError("the backend `server` needs a `base_url`, such as http://localhost:8000/v1.")
        from trl_diversity.evaluation.chat_server import ChatServer

        return ChatServer(base_url, model, max_concurrency=batch_size, chat_template_kwargs=chat_template_kwargs)
    if base_url is not None:
        raise ValueError(f"`base_url` belongs to the backend `server`, not to {backend!r}.")
    if model is None:
        raise ValueError(f"the backend {backend!r} needs a `model`: a Hub name or a directory.")
    if backend == "vllm":
        if base_model is not None:
            raise ValueError("vLLM is given a whole model: merge the adapter into `base_model` first.")
        return VllmGenerator(model, dtype, trust_remote_code, chat_template_kwargs)
    loaded, tokenizer = _load_transformers(model, base_model, device, dtype, trust_remote_code)
    return TransformersGenerator(loaded, tokenizer, batch_size, chat_template_kwargs)


@dataclass(frozen=True)
class Drawn:
    """
    A completion that was drawn.

    Attributes:
        text (`str`):
            Without special tokens, but with think and answer tags where those are special tokens. It begins with the
            think block that the prompt has opened, if it has, so that the text tells what is reasoning.
        finished (`bool`):
            Whether the model ended it, and not the limit of its length.
    """

    text: str
    finished: bool


def as_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """A prompt as a conversation: plain text is one turn of the user."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


class TransformersGenerator:
    """
    Draws with `model.generate`, prompt by prompt, so that what a prompt gets depends on no other prompt.

    A tokenizer without a chat template (a base model) reads the text of the prompt as it is.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The policy. It is put into evaluation mode while it draws.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        batch_size (`int`, *optional*, defaults to 16):
            Completions of one prompt that are drawn at the same time.
        chat_template_kwargs (`Mapping`, *optional*):
            Further arguments of the chat template.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        batch_size: int = 16,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.chat_template_kwargs = dict(chat_template_kwargs or {})

    def __call__(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[str]]:
        return [[drawn.text for drawn in group] for group in self.draw(prompts, sampling)]

    def draw(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Drawn]]:
        """`num_generations` completions for every prompt, and whether each came to its end."""
        was_training = self.model.training
        self.model.eval()
        try:
            return [self._draw(prompt, sampling) for prompt in prompts]
        finally:
            self.model.train(was_training)

    def _draw(self, prompt: Prompt, sampling: Sampling) -> list[Drawn]:
        import torch

        inputs = self._encode(prompt).to(self.model.device)
        opened = opened_reasoning(inputs["input_ids"][0].tolist(), self.tokenizer)
        length = inputs["input_ids"].shape[1]
        options: dict[str, Any] = {"max_new_tokens": self._room(length, sampling.max_tokens)}
        options["do_sample"] = sampling.temperature > 0
        options["repetition_penalty"] = 1.0  # whatever the checkpoint's own generation settings are
        if sampling.temperature > 0:
            options |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
            options["min_p"] = sampling.min_p or None
        pad = self.tokenizer.pad_token_id
        options["pad_token_id"] = self.tokenizer.eos_token_id if pad is None else pad
        ends = self.model.generation_config.eos_token_id
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        completions: list[Drawn] = []
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(_seed_of(prompt, sampling.seed))
            for start in range(0, sampling.num_generations, self.batch_size):
                count = min(self.batch_size, sampling.num_generations - start)
                output = self.model.generate(**inputs, num_return_sequences=count, **options)  # (count, length + new)
                for ids in output[:, length:].tolist():
                    completions.append(Drawn(opened + readable_text(ids, self.tokenizer), not ends.isdisjoint(ids)))
        return completions

    def _room(self, length: int, max_tokens: int) -> int:
        """Tokens that fit behind the prompt, at most `max_tokens`: beyond its context a model only babbles."""
        context = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if context is None:
            return max_tokens
        if length >= context:
            raise ValueError(f"a prompt has {length} tokens, and the model's context {context}: leave it out.")
        return min(max_tokens, context - length)

    def _encode(self, prompt: Prompt) -> Any:
        if self.tokenizer.chat_template is None:
            text = "\n\n".join(str(message["content"]) for message in as_messages(prompt))
            return self.tokenizer(text, return_tensors="pt")
        text = self.tokenizer.apply_chat_template(
            as_messages(prompt), add_generation_prompt=True, tokenize=False, **self.chat_template_kwargs
        )
        return self.tokenizer(text, return_tensors="pt", add_special_tokens=False)  # the template has them


def _load_transformers(
    model: str, base_model: str | None, device: str | None, dtype: str | None, trust_remote_code: bool
) -> tuple[Any, Any]:
    """A policy, with its adapter merged if there is one, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    # A CPU is several times slower in bfloat16
    dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
    loading: Any = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    loaded: Any
    if base_model is None:
        _require_known_base(model)
        loaded = AutoModelForCausalLM.from_pretrained(model, **loading)
    else:
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(base_model, **loading)
        loaded = PeftModel.from_pretrained(base, model).merge_and_unload()  # type: ignore[operator]
    named = model if base_model is None or (Path(model) / "tokenizer_config.json").exists() else base_model
    tokenizer = AutoTokenizer.from_pretrained(named, trust_remote_code=trust_remote_code)
    return loaded.to(device).eval(), tokenizer


def _require_known_base(model: str) -> None:
    """
    Refuse an adapter that does not say what it belongs to.

    Raises:
        `ValueError`: if `model` is such a directory.
    """
    adapter = Path(model) / "adapter_config.json"
    if adapter.is_file() and not json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path"):
        raise ValueError(
            f"{model!r} is an adapter that names no base, as one that was trained on a local directory: give that "
            "as `base_model`."
        )


class VllmGenerator:
    """Draws with a vLLM engine in this process. Tried with vLLM 0.32 on a CPU, not on a GPU; tests use a stand-in."""

    def __init__(
        self,
        model: str,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ):
        try:
            import vllm
        except ImportError as error:
            raise ImportError("the backend `vllm` needs vLLM: pip install 'trl-diversity[vllm]'") from error
        self._vllm: Any = vllm
        self.engine = vllm.LLM(model=model, dtype=dtype or "auto", trust_remote_code=trust_remote_code)
        self.chat_template_kwargs = dict(chat_template_kwargs or {})

    def __call__(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[str]]:
        parameters = self._vllm.SamplingParams(
            n=sampling.num_generations,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            min_p=sampling.min_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
        )
        outputs = self.engine.chat(
            [as_messages(prompt) for prompt in prompts],
            parameters,
            use_tqdm=False,
            chat_template_kwargs=self.chat_template_kwargs or None,
        )
        tokenizer = self.engine.get_tokenizer()
        return [
            [
                opened_reasoning(output.prompt_token_ids, tokenizer) + readable_text(choice.token_ids, tokenizer)
                for choice in output.outputs
            ]
            for output in outputs
        ]


def opened_reasoning(prompt_ids: Sequence[int], tokenizer: Any) -> str:
    """
    The think block that a prompt opens for the answer, `""` if it opens none or closes it.

    Without it reasoning that never ends could not be told from an answer.
    """
    tail = assistant_tail(prompt_ids, tokenizer)
    return tail if THINK in tail and END_THINK not in tail else ""


def readable_text(ids: Sequence[int], tokenizer: Any) -> str:
    """Text of sampled tokens without special tokens, except for think and answer tags where those are such tokens."""
    added = tokenizer.added_tokens_decoder
    special = {index for index, token in added.items() if token.special}.union(tokenizer.all_special_ids)
    tags = {index for index, token in added.items() if token.content in (THINK, END_THINK, ANSWER, END_ANSWER)}
    return decode([index for index in ids if index not in special - tags], tokenizer)


def _seed_of(prompt: Prompt, seed: int) -> int:
    """A seed for each prompt: a run that is taken up again draws what the uninterrupted one would."""
    return zlib.crc32(repr(prompt).encode()) + seed


def secret_key() -> str | None:
    """The server's key, if the environment has one. It is shown nowhere."""
    return os.environ.get("OPENAI_API_KEY") or None
