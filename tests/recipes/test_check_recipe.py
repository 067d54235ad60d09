# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity check-recipe`: what it prints, what it audits and what it refuses."""

import subprocess
import sys

import pytest

from tests.recipes.conftest import HEADER
from trl_diversity.scripts.check_recipe import run


def findings(report, subject):
    return [(entry["level"], entry["message"]) for entry in report["audit"] if entry["subject"] == subject]


def test_geometry_follows_the_number_of_processes(recipe, check):
    sizes = ("prompts_per_generation_batch", "prompts_per_optimizer_step", "optimizer_steps_per_generation")
    report = check(recipe(), "--num-processes", "8")
    assert [report[name] for name in sizes] == [32, 32, 1] and report["rollouts_per_prompt"] == 8
    report = check(recipe(), "--num_processes", "2")
    assert [report[name] for name in sizes] == [8, 8, 1]
    report = check(recipe(steps_per_generation=32, num_iterations=2), "--num-processes", "8")
    assert [report[name] for name in sizes] == [128, 32, 8]


def test_processes_and_servers_come_from_the_header(recipe, check):
    report = check(recipe())
    assert report["num_processes"] == 8 and report["status"] == 0
    assert [(server["kind"], server["gpus"]) for server in report["servers"]] == [("policy", 4)]
    assert report["total_gpus"] == 12
    assert check(recipe(header=""))["num_processes"] == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lr_scheduler_type", "linear"),
        ("weight_decay", 0.0),
        ("delta", None),
        ("use_bias_correction_kl", True),
        ("vllm_importance_sampling_correction", True),
    ],
)
def test_departures_from_the_papers_are_told(recipe, check, key, value):
    assert findings(check(recipe()), key)[0][0] == "ok"
    report = check(recipe(**{key: value}))
    ((level, message),) = findings(report, key)
    assert level == "warning" and "the paper's runs had" in message and report["status"] == 0


def test_where_the_memory_share_is_set(recipe, check):
    subject = "gpu memory share"
    assert findings(check(recipe()), subject) == [("ok", "0.8 on the command line of the policy server")]
    without = HEADER.replace("--gpu_memory_utilization 0.8 ", "")
    assert findings(check(recipe(header=without)), subject)[0][0] == "warning"
    report = check(recipe(vllm_gpu_memory_utilization=0.8))
    assert findings(report, subject)[0][0] == "error" and report["status"] == 1
    report = check(recipe(vllm_mode="colocate", vllm_gpu_memory_utilization=0.7))
    assert findings(report, subject)[0][1].startswith("0.7 by `vllm_gpu_memory_utilization`")
    assert findings(check(recipe(vllm_mode="colocate")), subject)[0][0] == "warning"


def test_sequences_longer_than_the_server(recipe, check):
    """FC-047: 3000 prompt tokens do not fit a server of 2048, and the recipe says so before anything runs."""
    report = check(recipe(max_completion_length=1025))
    assert report["status"] == 1 and "1537 tokens" in report["errors"][0] and "is 1536" in report["errors"][0]
    settings = {"vllm_mode": "colocate", "vllm_max_model_length": 2048, "max_completion_length": 512}
    assert check(recipe(**settings, max_prompt_tokens=3000))["status"] == 1
    assert check(recipe(**settings, max_prompt_tokens=1536))["status"] == 0
    assert findings(check(recipe(max_prompt_tokens=None)), "sequence length")[0][0] == "warning"


def test_a_server_with_another_model(recipe, check):
    report = check(recipe(model_name_or_path="owner/other"))
    assert report["status"] == 1 and "'owner/policy'" in report["errors"][0] and "'owner/other'" in report["errors"][0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_generations": 7}, "must be divisible by num_generations"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "would normalise the combined reward again"),
        ({"max_prompt_length": 512}, "unknown key `max_prompt_length`"),
        ({"num_generation": 8}, "The nearest is `num_generations`"),
        ({"save_strategy": "steps", "save_steps": 3, "steps_per_generation": 32}, "cuts a generation batch"),
    ],
)
def test_what_cannot_work(recipe, check, values, message):
    report = check(recipe(**values))
    assert report["status"] == 1 and message in report["errors"][0]


def test_both_trainers_are_told_apart_by_command_or_keys(recipe, check):
    darl = {"diversity_measure": None, "reward_funcs": None, "delta_weight": 0.01}
    assert check(recipe(header="", **darl))["command"] == "darl"
    assert check(recipe(header=""))["command"] == "darling"
    report = check(recipe(**darl))  # the header says darling
    assert report["status"] == 1 and "unknown key `delta_weight`" in report["errors"][0]


def test_bf16_is_checked_for_a_gpu_that_is_not_here(recipe, check):
    assert check(recipe(bf16=True))["status"] == 0


def test_environment_of_a_recipe_stays_out_of_this_process(recipe, check, monkeypatch):
    import os

    monkeypatch.delenv("CHECK_RECIPE_VARIABLE", raising=False)
    assert check(recipe(env={"CHECK_RECIPE_VARIABLE": "1"}))["status"] == 0
    assert "CHECK_RECIPE_VARIABLE" not in os.environ


def test_memory_of_a_local_model(recipe, check, causal_lm_path):
    report = check(recipe(header="", model_name_or_path=causal_lm_path, vllm_mode="colocate"))
    assert 0 < report["memory_per_gpu_gib"]["total"] < 1
    assert check(recipe())["memory_per_gpu_gib"] is None


def test_the_table(recipe, capsys):
    run([recipe()])
    printed = capsys.readouterr().out
    assert "32 prompts x 8 completions = 256" in printed and "warning" not in printed
    assert "GPUs in all           12" in printed


def test_the_file_is_named_once(recipe, check, capsys):
    path = recipe()
    assert check("--config", path)["num_processes"] == 8
    for words in ([], [path, "--config", path]):
        with pytest.raises(SystemExit):
            run(words)
        assert "give one recipe" in capsys.readouterr().err


def test_help_is_quick_and_needs_no_torch():
    code = "import sys; from trl_diversity.cli import main\ntry: main(['check-recipe', '--help'])\nexcept SystemExit: "
    code += "pass\nassert 'torch' not in sys.modules"
    assert (
        "FILE.yaml" in subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    )
