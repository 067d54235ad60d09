# SPDX-License-Identifier: Apache-2.0
"""Every recipe parses strictly, and holds to the numbers of the papers' appendices."""

import dataclasses
from pathlib import Path

import pytest

from trl_diversity.scripts.check_recipe import examine
from trl_diversity.scripts.config_file import read_config
from trl_diversity.scripts.recipe_audit import PAPER_SETTINGS
from trl_diversity.scripts.recipe_parsing import parse_recipe


ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
NOT_TRAINING = ("accelerate_configs", "classifier", "slurm")
ALL = sorted(str(path.relative_to(ROOT)) for path in RECIPES.rglob("*.yaml") if path.parent.name not in NOT_TRAINING)
DIVPO = [path for path in ALL if Path(path).stem == "divpo"]  # trained by TRL's DPOTrainer
ONLINE = [path for path in ALL if path not in DIVPO]
WILDCHAT_8B = [p for p in ONLINE if "llama-3.1-8b-instruct/" in p and "1gpu" not in p]
WILDCHAT_70B = [p for p in ONLINE if "llama-3.3-70b-instruct/" in p]
DEEPSCALER = [p for p in ONLINE if "qwen3-" in p]
DARL = [p for p in ONLINE if "darl/" in p]
PAPERS = [*WILDCHAT_8B, *WILDCHAT_70B, *DEEPSCALER, *DARL]
# Explicit in the file although some are defaults: what the papers' appendices list.
EXPLICIT = {
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "max_prompt_tokens",
    "max_completion_length",
    "learning_rate",
    "beta",
    "epsilon",
    "temperature",
    "use_vllm",
    "num_train_epochs",
    "scale_rewards",
    "loss_type",
    *PAPER_SETTINGS,
}


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and data sets are named from the root of the repository."""
    monkeypatch.chdir(ROOT)


def test_the_recipes_are_there():
    expected = {
        "llama-3.1-8b-instruct": "darling darling-paper darling-released-code grpo grpo-no-std grpo-unlikeliness "
        "ablation-add ablation-ngram ablation-std darling-lora-1gpu divpo",
        "llama-3.3-70b-instruct": "darling darling-paper grpo grpo-unlikeliness",
        "qwen3-4b-base": "darling darling-paper grpo grpo-unlikeliness ablation-add ablation-ngram ablation-std",
        "qwen3-14b-base": "darling darling-paper grpo grpo-unlikeliness",
        "darl": "llama-3.1-8b-instruct qwen2.5-7b rlpr-llama-3.1-8b-instruct rlpr-qwen2.5-7b",
    }
    there = {f"{folder}/{name}" for folder, names in expected.items() for name in names.split()}
    assert there <= {path.removeprefix("recipes/").removesuffix(".yaml") for path in ALL}


@pytest.mark.parametrize("path", ONLINE)
def test_it_parses_and_works(path):
    report = examine(path)
    assert report["errors"] == []
    assert report["command"] == ("darl" if "darl/" in path or "darl-" in path else "darling")


@pytest.mark.parametrize(
    ("paths", "processes", "geometry"),
    [
        (WILDCHAT_8B, 8, (32, 8, 32, 1)),
        (WILDCHAT_70B, 32, (64, 8, 64, 1)),
        (DEEPSCALER, 64, (256, 8, 64, 4)),
        ([p for p in DARL if "qwen" in p], 8, (768, 8, 192, 4)),
        ([p for p in DARL if "llama" in p], 8, (256, 8, 64, 4)),
    ],
    ids=["8b", "70b", "qwen3", "rlpr-qwen", "rlpr-llama"],
)
def test_batches_are_the_papers(paths, processes, geometry):
    """PAPERS: prompts x rollouts of a generation, prompts of a step, steps a generation; also without the option."""
    assert paths
    names = (
        "prompts_per_generation_batch",
        "rollouts_per_prompt",
        "prompts_per_optimizer_step",
        "optimizer_steps_per_generation",
    )
    for path in paths:
        report = examine(path, processes)
        assert tuple(report[name] for name in names) == geometry, path
        assert examine(path)["num_processes"] == processes, path


@pytest.mark.parametrize("path", PAPERS)
def test_settings_are_the_papers(path):
    """Learning rate, KL, clip, temperature, lengths, epochs, and what the released code runs with."""
    recipe = parse_recipe(path)
    args = recipe.training_args
    missing = EXPLICIT - recipe.written.keys()
    assert not missing, f"{path} leaves {sorted(missing)} to defaults"
    assert {finding["subject"]: finding["level"] for finding in examine(path)["audit"]}.items() >= dict.fromkeys(
        [*PAPER_SETTINGS, "gpu memory share", "sequence length"], "ok"
    ).items()
    assert (args.learning_rate, args.epsilon, args.loss_type) == (1e-6, 0.2, "dapo")
    lengths = (recipe.script_args.max_prompt_tokens, args.max_completion_length)
    server = recipe.serving("policy")[0]
    assert server.option("max_model_len") == str(sum(lengths))
    if path in DARL:
        assert lengths == (2048, 3072) and (args.beta, args.epsilon_high) == (0.0, 0.27)
        assert args.temperature == (0.6 if "llama" in path else 1.0)
        assert args.std_filter_beta == (0.9 if "llama" in path else 0.5)
        assert (args.delta_weight, args.debias) == ((0.0, True) if "rlpr" in path else (0.01, False))
        return
    math = path in DEEPSCALER
    assert lengths == ((1024, 8192) if math else (512, 1024))
    assert (args.beta, args.epsilon_high) == ((0.0, 0.2) if math else (0.001, None))
    assert server.option("gpu_memory_utilization") == ("0.7" if math else "0.8")
    assert (args.temperature, args.num_train_epochs) == (1.0, 10)
    assert recipe.script_args.reward_funcs == (["accuracy_reward"] if math else ["Nexusflow/Athene-RM-8B"])


@pytest.mark.parametrize("path", [*WILDCHAT_8B, *WILDCHAT_70B, *DEEPSCALER])
def test_each_is_the_experiment_of_its_name(path):
    args = parse_recipe(path).training_args
    name = Path(path).stem
    measure = {"grpo": "none", "grpo-no-std": "none", "grpo-unlikeliness": "unlikeliness", "ablation-ngram": "ngram"}
    assert args.diversity_measure == measure.get(name, "partition")
    assert args.scale_rewards == ("group" if name in ("grpo", "grpo-unlikeliness", "ablation-std") else "none")
    assert args.combine == ("add" if name == "ablation-add" else "multiply")
    assert args.quality_shift == ("none" if name in ("darling-paper", "darling-released-code") else "auto")
    released = name == "darling-released-code"
    assert (args.diversity_floor, args.short_answer_rule) == ((0.1, True) if released else (0.0, False))


@pytest.mark.parametrize("path", ONLINE)
def test_only_what_is_not_a_default_is_written(path):
    """Apart from the numbers of the appendices and the choice of the method, which are explicit on purpose."""
    recipe = parse_recipe(path)
    explicit = EXPLICIT | {"output_dir", "diversity_measure", "quality_shift", "epsilon_high", "combine"}
    method = {
        "ngram_n",
        "beta_rank",
        "diversity_weight",
        "alpha",
        "delta_weight",
        "threshold_type",
        "gamma",
        "aggregation",
        "format_weight",
        "format_style",
        "vllm_gpu_memory_utilization",
    }
    for args in (recipe.script_args, recipe.training_args, recipe.model_args):
        for field in dataclasses.fields(args):
            if field.name in recipe.written and field.name not in explicit | method | {"reference_column"}:
                default = field.default_factory() if callable(field.default_factory) else field.default
                assert getattr(args, field.name) != default or "smollm2" in path, f"`{field.name}` is the default"


@pytest.mark.parametrize("path", DIVPO)
def test_divpo_parses(path):
    report = examine(path)
    assert report["command"] == "divpo" and report["errors"] == [] and report["rollouts_per_prompt"] == 8


@pytest.mark.parametrize("path", PAPERS)
def test_headers_say_what_a_reader_needs(path):
    text = (ROOT / path).read_text()
    header = text.split("\n\n")[0]
    for word in ("Hardware:", "Expected:", "trl-diversity prepare-data", "trl vllm-serve", f"--config {path}"):
        assert word in header, f"{word} is missing in {path}"
    assert ("serve-classifier" in header) == ("partition_server_urls" in read_config(path).values)


def test_the_directory_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = examine(str(ROOT / "recipes/llama-3.3-70b-instruct/grpo.yaml"))
    assert report["num_processes"] == 32


def test_a_changed_number_is_seen(tmp_path):
    """The test above is no tautology: another batch size gives another geometry."""
    text = (ROOT / "recipes/llama-3.1-8b-instruct/grpo.yaml").read_text()
    changed = tmp_path / "grpo.yaml"
    changed.write_text(text.replace("per_device_train_batch_size: 4", "per_device_train_batch_size: 2"))
    assert examine(str(changed), 8)["prompts_per_generation_batch"] == 16
    changed.write_text(text.replace("per_device_train_batch_size: 4", "per_device_train_batch_size: 3"))
    assert examine(str(changed), 8)["prompts_per_optimizer_step"] == 24
    changed.write_text(text.replace("max_model_len 1536", "max_model_len 1024"))
    assert examine(str(changed), 8)["errors"]


@pytest.mark.parametrize("path", PAPERS)
def test_commands_of_the_header_are_valid(path):
    """Each by its own parser; the prepared data are where the recipe reads them, with the recipe's limit."""
    from trl.scripts.vllm_serve import make_parser as vllm_parser

    from trl_diversity.scripts.prepare_data import make_parser as data_parser
    from trl_diversity.scripts.serve_classifier import make_parser as classifier_parser

    recipe = parse_recipe(path)
    prepared = next(command for command in recipe.commands if "prepare-data" in command.words)
    (data,) = data_parser().parse_args_and_config(["--name", *prepared.words[2:]])
    assert f"{data.output}/train.parquet" == recipe.script_args.dataset_name
    assert data.model == recipe.model_args.model_name_or_path
    assert data.max_prompt_tokens == recipe.script_args.max_prompt_tokens
    for server in recipe.serving("policy"):
        (served,) = vllm_parser().parse_args_and_config(list(server.words[2:]))
        assert str(served.gpu_memory_utilization) == server.option("gpu_memory_utilization")
        assert recipe.training_args.vllm_server_base_url.endswith(f":{served.port}")
    for server in recipe.serving("classifier"):
        words = server.words[2:]
        parsed = classifier_parser().parse_args_and_config(["--model", *words])[0]
        ports = [int(url.rpartition(":")[2]) for url in recipe.training_args.partition_server_urls]
        assert ports == list(range(parsed.port, parsed.port + parsed.gpus)) and parsed.host == "0.0.0.0"
        assert parsed.model == recipe.training_args.partition_model
