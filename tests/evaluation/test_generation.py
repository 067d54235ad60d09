# SPDX-License-Identifier: Apache-2.0
"""Drawing completions: a tiny model, a server that misbehaves at first, and a stand-in for vLLM."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import tiny
from trl_diversity.diversity.groups import narrow_text
from trl_diversity.evaluation.chat_server import ChatServer
from trl_diversity.evaluation.generation import make_generator, readable_text
from trl_diversity.evaluation.sampling import PRESETS, Sampling, sampling_from
from trl_diversity.scripts.generation_arguments import GenerationArguments


def test_presets_are_the_papers():
    assert sampling_from("pass-at-k") == Sampling(256, 0.6, 0.95, 0, 0.0, 12000)
    assert sampling_from("eq-bench", min_p=None, seed=3) == Sampling(1, 1.0, 1.0, 0, 0.1, 4096, 3)
    assert PRESETS["noveltybench"].num_generations == 10 and PRESETS["noveltybench-original"].max_tokens == 512
    for name in ("alpaca-eval", "arena-hard"):
        assert (PRESETS[name].temperature, PRESETS[name].top_p, PRESETS[name].max_tokens) == (0.6, 0.9, 8192)
    with pytest.raises(ValueError, match="no decoding preset 'x'"):
        sampling_from("x")


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"top_p": 0}, {"min_p": 1}, {"max_tokens": 0}, {"top_k": -1}, {"num_generations": 0}],
)
def test_impossible_settings(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` is"):
        Sampling(**wrong)
    with pytest.raises(ValueError, match="all 10 completions of a prompt are the same"):
        Sampling(temperature=0)


def test_a_prompt_gets_the_same_whatever_is_drawn_beside_it(causal_lm_path):
    """So a run that is taken up again draws what the uninterrupted one would have."""
    generator = make_generator(causal_lm_path, batch_size=2, device="cpu")
    sampling = Sampling(num_generations=3, max_tokens=5)
    both = generator(["one", "two"], sampling)
    assert [len(group) for group in both] == [3, 3] and both[1] == generator(["two"], sampling)[0]
    assert both[0] != generator(["one"], Sampling(num_generations=3, max_tokens=5, seed=1))[0]
    assert len(set(both[0])) > 1
    greedy = Sampling(num_generations=1, max_tokens=5, temperature=0)
    assert generator(["one"], greedy) == generator([[{"role": "user", "content": "one"}]], greedy)


def test_completions_end_where_the_context_does(tmp_path):
    path = tiny.save_tiny_causal_lm(tmp_path, max_position_embeddings=24)
    generator = make_generator(path, device="cpu")
    lengths: list[int] = []
    generate = generator.model.generate  # type: ignore[attr-defined]
    generator.model.generate = lambda **options: lengths.append(options["max_new_tokens"]) or generate(**options)  # type: ignore
    generator(["hello"], Sampling(num_generations=1, max_tokens=100))
    generator(["hello"], Sampling(num_generations=1, max_tokens=3))
    length = len(
        generator.tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], add_generation_prompt=True)[
            "input_ids"
        ]
    )  # type: ignore
    assert lengths == [24 - length, 3]
    with pytest.raises(ValueError, match="a prompt has .* tokens, and the model's context 24"):
        generator(["x" * 50], Sampling(num_generations=1))


def test_adapter_is_put_on_its_base(causal_lm_path, tmp_path):
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(causal_lm_path), LoraConfig(r=2, target_modules="all-linear")
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.5)
    model.save_pretrained(tmp_path)
    greedy = Sampling(num_generations=1, max_tokens=8, temperature=0)
    plain = make_generator(causal_lm_path, device="cpu")(["hello"], greedy)
    assert make_generator(str(tmp_path), base_model=causal_lm_path, device="cpu")(["hello"], greedy) != plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": None}, "needs a `model`"),
        ({"model": "m", "backend": "server"}, "needs a `base_url`"),
        ({"model": "m", "backend": "vllm", "base_url": "http://x/v1"}, "belongs to the backend `server`"),
        ({"model": "m", "backend": "vllm", "base_model": "b"}, "merge the adapter"),
        ({"model": "m", "base_url": "localhost:8000"}, "is not complete; expected one such as"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_generator(**arguments)


def test_an_adapter_without_a_base_is_refused(causal_lm_path, tmp_path):
    """What is saved names no local path, so that an adapter on a local policy names no base."""
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(causal_lm_path), LoraConfig(target_modules="all-linear")
    )
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(ValueError, match="give that as `base_model`"):
        make_generator(str(tmp_path), device="cpu")


THINKING = tiny.CHAT_TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>\n{{ mood }}{% endif %}")


def thinking_model(path, special=False, template=THINKING):
    """Its template opens the think block; its tags may be special tokens."""
    tiny.save_tiny_causal_lm(path, words=() if special else ("<think>", "</think>"))
    tokenizer = AutoTokenizer.from_pretrained(path)
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>", "<|end|>"]})
        model = AutoModelForCausalLM.from_pretrained(path)
        model.resize_token_embeddings(len(tokenizer))
        model.save_pretrained(path)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("special", [False, True])
def test_reasoning_that_the_prompt_opened_is_told_from_an_answer(tmp_path, special):
    """Nothing but reasoning was drawn: without its tag all of it would be compared as the answer."""
    generator = make_generator(thinking_model(tmp_path, special), device="cpu")
    ((text,),) = generator(["one"], Sampling(num_generations=1, max_tokens=5))
    assert text.startswith("<think>\n") and narrow_text(text, "after_think") == ""
    close = generator.tokenizer.convert_tokens_to_ids("</think>")
    ids = [*generator.tokenizer("a", add_special_tokens=False)["input_ids"], close, 2]
    assert readable_text(ids, generator.tokenizer) == "a</think>"


def test_arguments_of_the_template_reach_the_policy(tmp_path):
    path = thinking_model(tmp_path)
    greedy = Sampling(num_generations=1, max_tokens=3, temperature=0)
    ((text,),) = make_generator(path, device="cpu", chat_template_kwargs={"mood": "calm"})(["one"], greedy)
    assert text.startswith("<think>\ncalm")
    arguments = GenerationArguments(device="cpu", chat_template_kwargs={"mood": "calm"})
    assert arguments.make_generator(path)(["one"], greedy) == [[text]]
    assert arguments.described("m", "noveltybench")["chat_template_kwargs"] == {"mood": "calm"}


class _Handler(BaseHTTPRequestHandler):
    failures: list[int] = []
    seen: list[tuple[str, dict]] = []
    owner: str | None = None
    lists_models = True

    def _reply(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if not self.lists_models:
            return self._reply(404, {"error": "unknown"})
        self._reply(200, {"data": [{"id": "the-model", "owned_by": self.owner}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append((self.headers.get("Authorization", ""), body))
        if self.failures:
            return self._reply(type(self).failures.pop(), {"error": "busy"})
        prompt = body["messages"][-1]["content"]
        count = min(body["n"], 2)  # it gives at most two at a time
        choices = [{"message": {"content": f"{prompt} {body['seed'] + i}"}} for i in range(count)]
        self._reply(200, {"choices": choices if prompt != "odd" else "none"})

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    _Handler.failures, _Handler.seen, _Handler.owner, _Handler.lists_models = [], [], None, True
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{httpd.server_port}/v1"
    httpd.shutdown()
    httpd.server_close()


def test_server_is_asked_until_it_answers(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    _Handler.failures = [503, 429]
    chat = ChatServer(f"http://{server}", max_concurrency=1, back_off=0.01)
    drawn = chat(["a", [{"role": "user", "content": "b"}]], Sampling(num_generations=3, max_tokens=7, min_p=0.1))
    assert drawn == [["a 0", "a 1", "a 2"], ["b 0", "b 1", "b 2"]]
    authorization, body = _Handler.seen[-1]
    assert authorization == "Bearer secret"
    assert body | {"messages": None} == {
        "model": "the-model",
        "messages": None,
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 7,
        "seed": 2,
        "min_p": 0.1,
    }


def test_vllm_is_told_what_it_would_take_from_the_checkpoint(server):
    """Its defaults are those of generation_config.json: top_k 20 and a penalty for repetition with Qwen's models."""
    _Handler.owner = "vllm"
    ChatServer(f"http://{server}", "the-model")(["a"], Sampling(num_generations=1))
    ChatServer(f"http://{server}", chat_template_kwargs={"enable_thinking": False})(
        ["a"], Sampling(num_generations=1, top_k=5, min_p=0.1)
    )
    neutral, chosen = (body for _, body in _Handler.seen)
    assert (neutral["top_k"], neutral["min_p"], neutral["repetition_penalty"]) == (0, 0.0, 1.0)
    assert (chosen["top_k"], chosen["min_p"], chosen["repetition_penalty"]) == (5, 0.1, 1.0)
    assert chosen["chat_template_kwargs"] == {"enable_thinking": False} and "chat_template_kwargs" not in neutral


def test_a_server_that_lists_no_models_is_asked_by_name(server):
    _Handler.lists_models = False
    assert ChatServer(f"http://{server}", "m")(["a"], Sampling(num_generations=1)) == [["a 0"]]
    assert not {"top_k", "min_p", "repetition_penalty"} & _Handler.seen[0][1].keys()
    with pytest.raises(ValueError, match="404"):
        ChatServer(f"http://{server}")(["a"], Sampling())


def test_errors_of_a_server_name_it_without_its_user(server):
    _Handler.failures = [503, 503]
    chat = ChatServer(f"http://me:hidden@{server}", "m", retries=1, back_off=0.01)
    with pytest.raises(ConnectionError, match=rf"http://{server.removesuffix('/v1')}: HTTP 503") as error:
        chat(["a"], Sampling())
    _Handler.failures = [400]
    with pytest.raises(ValueError, match="refused POST /v1/chat/completions: HTTP 400") as refused:
        chat(["a"], Sampling())
    with pytest.raises(ValueError, match="replied in another form than OpenAI's"):
        chat(["odd"], Sampling())
    assert "hidden" not in f"{error.value}{refused.value}" and chat([], Sampling()) == []


def test_vllm_gets_the_same_settings(monkeypatch):
    calls = []

    class LLM:
        def __init__(self, **options):
            calls.append(options)

        def get_tokenizer(self):
            return tokenizer

        def chat(self, messages, parameters, use_tqdm, chat_template_kwargs):
            calls.append(chat_template_kwargs)
            return [
                SimpleNamespace(
                    prompt_token_ids=tokenizer("<|user|>x<|end|><|assistant|><think>")["input_ids"],
                    outputs=[
                        SimpleNamespace(token_ids=[*tokenizer(f"{turn[0]['content']}{i}")["input_ids"], 2])
                        for i in range(parameters.n)
                    ],
                )
                for turn in messages
            ]

    def sampling_parameters(**options):
        calls.append(options)
        return SimpleNamespace(**options)

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=sampling_parameters))
    tokenizer = tiny.tiny_tokenizer()
    generator = make_generator("m", backend="vllm", chat_template_kwargs={"mood": "calm"})
    drawn = generator(["a", "b"], Sampling(num_generations=2))
    assert drawn == [["<think>a0", "<think>a1"], ["<think>b0", "<think>b1"]]
    assert calls[0] == {"model": "m", "dtype": "auto", "trust_remote_code": False}
    assert calls[2] == {"mood": "calm"}
    assert calls[1]["top_k"] == -1 and calls[1]["n"] == 2 and calls[1]["max_tokens"] == 4096
