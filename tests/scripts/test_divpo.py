# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity build-divpo-pairs` and `trl-diversity divpo`: pairs on disk, rounds of training, the recipe."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig

from tests import tiny
from tests.scripts.conftest import read_lines, write_lines
from tests.scripts.test_partition import SameFirstWord
from trl_diversity import cli
from trl_diversity.scripts.divpo import (
    DivpoScriptArguments,
    _reward_of_rounds,
    keeps_text,
    make_parser,
    train_rounds,
)


ROOT = Path(__file__).resolve().parents[2]
CHAT = [{"role": "user", "content": "p"}]


def build(*argv: str) -> list:
    cli.main(["build-divpo-pairs", "--input", "groups.jsonl", "--output", "pairs.jsonl", *argv])
    return read_lines(Path("pairs.jsonl"))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SameFirstWord:
    model = SameFirstWord()
    monkeypatch.setattr("trl_diversity.equivalence.load_equivalence_model", lambda *arguments, **options: model)
    return model


def test_pairs_in_trls_form(working_directory, model, capsys):
    texts = ["a x", "a y", "b", "a z"]
    rows = [
        {"prompt": "p", "completions": texts, "quality": [1.0, 0.5, 0.8, 0.0]},
        {"prompt": CHAT, "completions": texts, "quality": [1.0, 0.5, 0.8, 0.0], "labels": [0, 1, 2, 2]},
        {"prompt": "p", "completions": texts, "quality": [1, 1, 0, 0], "diversity": [0.1, 0.2, 0.4, 0.3]},
        {"prompt": "p", "completions": texts, "quality": [1.0] * 4},
    ]
    write_lines(Path("groups.jsonl"), rows)
    pairs = build()
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == [
        ("b", "a z"),
        ([{"role": "assistant", "content": "a x"}], [{"role": "assistant", "content": "a z"}]),
        ("a y", "a z"),
    ]
    assert pairs[0] | {"prompt": 0} == {
        "prompt": 0,
        "chosen": "b",
        "rejected": "a z",
        "chosen_quality": 0.8,
        "chosen_diversity": 1.0,
        "rejected_quality": 0.0,
        "rejected_diversity": pytest.approx(1 / 3),
    }
    assert "3 pairs of 4 groups (no pair: 1 same quality)" in capsys.readouterr().out


def test_other_rewards_and_measures(working_directory):
    rows = [{"prompt": "p", "completions": ["one two", "one two three", "x", "y y y y y"]}]
    write_lines(Path("groups.jsonl"), rows)
    (pair,) = build("--reward_model", "script_rewards.brevity", "--diversity_measure", "ngram", "--ngram_n", "2")
    assert pair["chosen"] == "x" and pair["chosen_quality"] == 0.5 and pair["rejected"] == "y y y y y"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"completions": ["a"], "quality": [1]}, "row 1: expected `prompt`"),
        ({"prompt": "p", "completions": [], "quality": []}, "row 1: expected `completions`"),
        ({"prompt": "p", "completions": ["a"]}, "row 1: expected `quality` as a list of numbers"),
        ({"prompt": "p", "completions": ["a"], "quality": [1, 2], "labels": [0]}, "1 completions, 2 qualities"),
    ],
)
def test_wrong_rows_leave_nothing(working_directory, model, row, message):
    write_lines(Path("groups.jsonl"), [row])
    with pytest.raises(SystemExit, match=message):
        build()
    assert not Path("pairs.jsonl").exists()


def divpo(policy: str, *argv: str) -> None:
    options = ["--use_cpu", "--bf16", "false", "--gradient_checkpointing", "false", "--report_to", "none"]
    options += ["--learning_rate", "1e-2", "--save_strategy", "no", "--per_device_train_batch_size", "2"]
    cli.main(["divpo", "--model_name_or_path", policy, "--output_dir", "out", *options, *argv])


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is cut at eight tokens is never chosen."""
    return tiny.save_tiny_terse_lm(tmp_path_factory.mktemp("policy"))


# As DeepSeek-R1's: of an answer with reasoning only what follows it is rendered.
DROPS_REASONING = tiny.CHAT_TEMPLATE.replace(
    "{{ message['content'] }}", "{{ message['content'].split('</think>')[-1] }}"
)


@pytest.mark.parametrize(
    ("template", "text", "kept"),
    [
        (tiny.CHAT_TEMPLATE, "<think>a</think> b", True),
        (DROPS_REASONING, "<think>a</think> b", False),
        (DROPS_REASONING, "a b", True),
        (tiny.CHAT_TEMPLATE.replace("['content'] }}", "['content'] | trim }}"), "\n a b \n", True),
        # As Qwen3's: an answer without reasoning gets an empty block
        (
            tiny.CHAT_TEMPLATE.replace("{{ message['content'] }}", "<think></think>{{ message['content'] }}"),
            "b",
            False,
        ),
    ],
)
def test_whether_dpo_would_train_on_what_was_sampled(template, text, kept):
    tokenizer = tiny.tiny_tokenizer(chat_template=template)
    assert keeps_text(tokenizer, CHAT, text) is kept
    assert keeps_text(tokenizer, "p", text)


def test_a_think_block_that_the_prompt_opens_is_no_change():
    """The completion begins with it, and so does the rendered answer."""
    opens = "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
    template = tiny.CHAT_TEMPLATE.replace("{% if add_generation_prompt %}<|assistant|>{% endif %}", opens)
    assert keeps_text(tiny.tiny_tokenizer(chat_template=template), CHAT, "<think>\na</think> b")
    template = DROPS_REASONING.replace("{% if add_generation_prompt %}<|assistant|>{% endif %}", opens)
    assert not keeps_text(tiny.tiny_tokenizer(chat_template=template), CHAT, "<think>\na</think> b")


def test_arguments_of_the_template_hold_for_sampling_and_for_training(working_directory, policy):
    shutil.copytree(policy, "moody")
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = "{{ mood }}" + tiny.CHAT_TEMPLATE
    tokenizer.save_pretrained("moody")
    seen = []

    def note(trainer):
        seen.extend(tokenizer.decode(ids) for ids in trainer.train_dataset["prompt_ids"])

    model = AutoModelForCausalLM.from_pretrained("moody")
    drawn = []
    generate = model.generate
    model.generate = lambda input_ids, **options: drawn.append(input_ids[0].tolist()) or generate(input_ids, **options)
    script_args = DivpoScriptArguments(
        rounds=1, prompts_per_round=4, num_generations=4, max_completion_length=8, diversity_measure="ngram",
        chat_template_kwargs={"mood": "calm "},
    )  # fmt: skip
    training_args = DPOConfig(
        "out",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        max_steps=1,
    )
    lengths = lambda prompts, texts: [float(len(text)) for text in texts]  # noqa: E731
    train_rounds(model, tokenizer, [CHAT], lengths, script_args, training_args, prepare=note)
    assert drawn and all(tokenizer.decode(ids).startswith("calm <|user|>") for ids in drawn)
    assert seen and all(text.startswith("calm <|user|>") for text in seen)


def test_rewritten_and_unfinished_completions_are_counted_and_no_pair_is_made_of_them(working_directory, policy):
    shared = ("--dataset_name", "train.jsonl", "--prompt_column", "question", "--rounds", "1")
    shared += ("--reward_funcs", "script_rewards.brevity", "--diversity_measure", "ngram", "--prompts_per_round", "2")
    shared += ("--num_generations", "4")
    with pytest.raises(ValueError, match="no round gave a pair.*came to its end"):
        divpo(policy, *shared, "--max_completion_length", "1", "--seed", "3")
    (found,) = read_lines(Path("out/rounds.jsonl"))
    assert found["unfinished_completions"] > 0
    shutil.copytree(policy, "rewriting")
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = tiny.CHAT_TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'][1:] }}")
    tokenizer.save_pretrained("rewriting")
    with pytest.raises(ValueError, match="no round gave a pair.*chat template rewrites"):
        divpo("rewriting", *shared, "--max_completion_length", "8")
    (found,) = read_lines(Path("out/rounds.jsonl"))
    assert found["rewritten_completions"] == 8 and found["rewritten by the chat template"] == 2


@pytest.mark.parametrize("adapter", [True, False], ids=["lora", "all weights"])
def test_rounds_move_the_policy_towards_what_is_chosen(working_directory, policy, adapter):
    """The reward likes short answers; after two rounds the policy has changed and is on disk."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    lora = ["--use_peft", "--lora_r", "2", "--lora_target_modules", "all-linear"] if adapter else []
    divpo(
        policy,
        *("--dataset_name", "train.jsonl", "--prompt_column", "question"),
        *("--reward_funcs", "script_rewards.brevity", "--diversity_measure", "ngram"),
        *("--rounds", "3", "--prompts_per_round", "4", "--num_generations", "4", "--max_completion_length", "8"),
        *lora,
    )
    rounds = read_lines(Path("out/rounds.jsonl"))
    assert [row["round"] for row in rounds] == [1, 2, 3] and all(row["groups"] == 4 for row in rounds)
    assert rounds[0]["pairs"] >= 1 and {"quality", "diversity"} <= rounds[0].keys()
    base = AutoModelForCausalLM.from_pretrained(policy)
    if adapter:
        trained = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(policy), "out")
        moved = [value.abs().sum().item() for name, value in trained.named_parameters() if "lora_B" in name]
        assert len(moved) > 4 and all(value > 0 for value in moved)
    else:
        trained = AutoModelForCausalLM.from_pretrained("out")
        pairs = zip(base.parameters(), trained.parameters(), strict=True)
        assert all(not torch.equal(before, after) for before, after in pairs)
    assert "DPO" in Path("out/README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_completion_length", "1020"], "`max_length` is 1024, so that DPO would cut answers: .* tokens"),
        (["--watch_reward_hacking", "true"], "`watch_reward_hacking` has no effect"),
        (["--load_in_4bit", "true"], "`load_in_4bit` has no effect"),
        (["--resume_from_checkpoint", "out"], "`resume_from_checkpoint` has no effect"),
    ],
)
def test_what_would_be_cut_or_ignored_is_refused(working_directory, causal_lm_path, options, message):
    shared = (
        "--dataset_name",
        "train.jsonl",
        "--prompt_column",
        "question",
        "--reward_funcs",
        "script_rewards.brevity",
    )
    with pytest.raises(SystemExit, match=message):
        divpo(causal_lm_path, *shared, "--diversity_measure", "ngram", *options)


def test_long_prompts_are_left_out_and_texts_become_messages(working_directory, causal_lm_path, monkeypatch):
    """Groups are sampled with the chat template, so DPO must train with it too."""
    write_lines(Path("prompts.jsonl"), [{"prompt": "a b c"}, {"prompt": "x " * 60}, {"prompt": "d"}])
    seen = []

    def rounds(model, tokenizer, prompts, *others):
        seen.extend(prompts)
        raise SystemExit("seen")

    monkeypatch.setattr("trl_diversity.scripts.divpo.train_rounds", rounds)
    options = ("--dataset_name", "prompts.jsonl", "--reward_funcs", "script_rewards.brevity")
    with pytest.raises(SystemExit, match="seen"):
        divpo(causal_lm_path, *options, "--max_prompt_tokens", "60", "--max_completion_length", "8")
    assert seen == [[{"role": "user", "content": text}] for text in ("a b c", "d")]


def test_what_is_saved_holds_no_token_and_no_local_path(working_directory, policy):
    """Every byte of a run with adapters on a local base."""
    token = "hf_" + "q7w8e9" * 6
    divpo(
        policy,
        *("--dataset_name", "train.jsonl", "--prompt_column", "question"),
        *("--reward_funcs", "script_rewards.brevity", "--diversity_measure", "ngram", "--hub_token", token),
        *("--rounds", "1", "--prompts_per_round", "4", "--num_generations", "4", "--max_completion_length", "8"),
        *("--use_peft", "--lora_r", "2", "--lora_target_modules", "all-linear"),
    )
    files = [path for path in Path("out").rglob("*") if path.is_file()]
    assert {"adapter_model.safetensors", "training_args.bin", "README.md"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert token.encode() not in content, path
        assert str(working_directory).encode() not in content, path
        assert str(Path(policy).parent).encode() not in content, path


def test_adapter_goes_on_from_the_round_before(causal_lm_path):
    """Two rounds of one step are not one: the second begins with the first one's adapter, the reference does not."""
    import torch
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig

    from trl_diversity.scripts.divpo import _taken_off, _train_on

    args = DPOConfig(
        output_dir="unused", max_steps=1, learning_rate=0.0, bf16=False, gradient_checkpointing=False, use_cpu=True,
        report_to="none", save_strategy="no", per_device_train_batch_size=1,
    )  # fmt: skip
    from datasets import Dataset

    pairs = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    model = AutoModelForCausalLM.from_pretrained(causal_lm_path)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    config = LoraConfig(r=2, target_modules=["q_proj"])
    trainer = _train_on(pairs, model, AutoTokenizer.from_pretrained(causal_lm_path), args, config)
    with torch.no_grad():
        for name, value in trainer.model.named_parameters():
            if "lora_B" in name:
                value.fill_(0.25)
    model, adapter = _taken_off(trainer.model)
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    again = _train_on(pairs, model, AutoTokenizer.from_pretrained(causal_lm_path), args, config, adapter)
    values = [value for name, value in again.model.named_parameters() if "lora_B" in name]
    assert values and all((value == 0.25).all() for value in values)
    assert again.state.log_history and "ref" not in again.model.peft_config


def test_pairs_are_trained_on_as_they_are(working_directory, causal_lm_path):
    write_lines(Path("pairs.jsonl"), [{"prompt": "p", "chosen": f"a{i}", "rejected": "b"} for i in range(4)])
    divpo(causal_lm_path, "--dataset_name", "pairs.jsonl", "--max_steps", "1")
    assert Path("out/model.safetensors").is_file() and not Path("out/rounds.jsonl").exists()


def test_recipe_is_read_strictly(monkeypatch):
    monkeypatch.chdir(ROOT)
    script_args, training_args, model_args = make_parser("x").parse_args_and_config(
        ["--config", "recipes/smollm2-135m/divpo.yaml"]
    )
    assert script_args.rounds * script_args.prompts_per_round * script_args.num_generations == 12 * 48
    assert training_args.beta == 0.1 and model_args.lora_r == 16


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rounds", "0"], "`rounds` is at least 1"),
        (["--num_generations", "1"], "`num_generations` is at least 2"),
        (["--min_quality", "1"], "give both `min_quality` and `max_quality`"),
        (["--round", "3"], "The nearest is `--rounds`"),
    ],
)
def test_wrong_arguments(capsys, argv, message):
    with pytest.raises(SystemExit) as stopped:
        make_parser("x").parse_args_and_config(["--output_dir", "out", *argv])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_rounds_are_for_one_process(monkeypatch):
    """Every rank would sample on its own, and train on other pairs than it was dealt."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="sampled by one process. On several, build pairs"):
        _reward_of_rounds(DivpoScriptArguments(reward_funcs=["script_rewards.brevity"]))


def test_one_reward_is_needed(working_directory, causal_lm_path):
    with pytest.raises(SystemExit, match="name one quality reward"):
        divpo(causal_lm_path, "--dataset_name", "train.jsonl", "--prompt_column", "question")
    assert json.loads(Path("train.jsonl").read_text().splitlines()[0])["answer"] == "cat"
