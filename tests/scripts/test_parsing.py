# SPDX-License-Identifier: Apache-2.0
"""The strict parser: types, precedence, and what it says about names that nobody reads."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from trl_diversity.scripts import darling


CPU = ["--use_cpu", "--bf16", "false", "--report_to", "none"]


@pytest.fixture(scope="module")
def parse() -> Callable[..., Any]:
    """Parse a command line into one object with all values. The parser, which is slow to import, is made anew."""

    def parse_arguments(*argv: str) -> Any:
        parsed = darling.make_parser("darling").parse_args_and_config([*CPU, *argv])
        assert [type(part).__name__ for part in parsed] == ["DarlingScriptArguments", "DarlingConfig", "ModelConfig"]
        values: dict[str, Any] = {}
        for part in parsed:
            values |= vars(part)
        return values

    return parse_arguments


@pytest.fixture
def error_of(parse: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The message with which a command line is refused."""

    def message(*argv: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            parse(*argv)
        assert stopped.value.code == 2
        shown = capsys.readouterr().err
        assert "Traceback" not in shown
        return shown

    return message


def test_misspelt_keys_are_reported_together_with_the_nearest(config, error_of):
    path = config("learning_rat: 1e-6\nnum_generation: 8\nbeta: 0\n")
    message = error_of("--config", path, "--clusterin", "greedy")
    assert f"{path}: unknown key `learning_rat`. The nearest is `learning_rate`." in message
    assert f"{path}: unknown key `num_generation`. The nearest is `num_generations`." in message
    assert "unknown option `--clusterin`. The nearest is `--clustering`." in message
    assert "`beta`" not in message


def test_moved_key_says_where_to(config, error_of):
    message = error_of("--config", config("max_prompt_length: 512"))
    assert "`max_prompt_length`" in message and "`max_prompt_tokens` leaves out those that are too long" in message
    assert "`reward_funcs`" in error_of("--reward_model_name_or_path", "x")


@pytest.mark.parametrize("flag", ["--learning_ra=1", "--learning_ra", "--conf", "--learning-ra"])
def test_flags_cannot_be_abbreviated(error_of, flag):
    assert f"unknown option `{flag.split('=')[0]}`. The nearest is `--{'config' if flag == '--conf' else 'learn'}" in (
        error_of(flag, "1")
    )


def test_stray_value_is_an_error(error_of):
    assert "unexpected argument 'file.yaml'" in error_of("file.yaml")


@pytest.mark.parametrize("form", [lambda path: ["--config", path], lambda path: [f"--config={path}"]])
def test_both_forms_of_the_config_flag(parse, config, form):
    assert parse(*form(config("num_generations: 4\nper_device_train_batch_size: 4")))["num_generations"] == 4


def test_config_flag_needs_one_file(config, error_of, tmp_path):
    path = config("beta: 0")
    assert "no configuration file" in error_of("--config", str(tmp_path / "absent.yaml"))
    assert "no configuration file" in error_of("--config", str(tmp_path))
    assert "followed by the path" in error_of("--config")
    assert "followed by the path" in error_of("--config", "--beta", "0")
    assert "given 2 times" in error_of("--config", path, f"--config={path}")


def test_command_line_wins_even_with_a_default(parse, config):
    """FC-071: the file won where the value of the command line was the default."""
    path = config("gradient_accumulation_steps: 4\nclustering: greedy\ngradient_checkpointing: false")
    values = parse("--config", path)
    assert (values["gradient_accumulation_steps"], values["clustering"]) == (4, "greedy")
    assert values["gradient_checkpointing"] is False
    argv = ["--gradient_accumulation_steps", "1", "--clustering", "closure", "--gradient_checkpointing"]
    for arguments in (["--config", path, *argv], [*argv, "--config", path]):
        values = parse(*arguments)
        assert (values["gradient_accumulation_steps"], values["clustering"]) == (1, "closure")
        assert values["gradient_checkpointing"] is True


def test_every_spelling_of_false_is_false(parse, config):
    """FC-072: `False` in the file was dropped when it was turned into flags."""
    path = config(
        "use_vllm: False\nlog_completions: 'no'\nshort_answer_rule: false\nuse_peft: off\n"
        "gradient_checkpointing: false\ndataloader_pin_memory: no\naverage_tokens_across_devices: 'False'\n"
        "remove_unused_columns: 0\n"
    )
    values = parse("--config", path)
    for name in (
        "use_vllm",
        "log_completions",
        "short_answer_rule",
        "use_peft",
        "gradient_checkpointing",
        "dataloader_pin_memory",
        "average_tokens_across_devices",
        "remove_unused_columns",
    ):
        assert values[name] is False, name
    assert parse("--config", config("use_liger_kernel: on\nbf16: no"))["use_liger_kernel"] is True
    assert parse("--no_gradient_checkpointing")["gradient_checkpointing"] is False
    assert parse("--gradient-checkpointing", "off")["gradient_checkpointing"] is False


def test_exponents_are_numbers(parse, config):
    """FC-075: YAML 1.1 takes `5e-1` for a text."""
    values = parse("--config", config("partition_threshold: 5e-1\ntemperature: 1e0\nmax_steps: 1e2\nseed: 1_000"))
    assert values["partition_threshold"] == 0.5
    assert values["temperature"] == 1.0 and isinstance(values["temperature"], float)
    assert values["max_steps"] == 100 and type(values["max_steps"]) is int
    assert values["seed"] == 1000
    assert parse("--max_steps", "1e2")["max_steps"] == 100


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_steps: 8.5", "expected a whole number, got '8.5'"),
        ("max_steps: many", "expected a whole number, got 'many'"),
        ("max_steps: 1e-2", "expected a whole number, got '1e-2'"),
        ("max_steps:", "expected a whole number, got nothing"),
        ("max_steps: [1, 2]", "expected a whole number, got a list"),
        ("learning_rate: fast", "expected a number, got 'fast'"),
        ("learning_rate: nan", "expected a number, got 'nan'"),
        ("learning_rate: {value: 1}", "expected a number, got a mapping"),
        ("use_peft: maybe", "expected true or false, got 'maybe'"),
        ("partition_threshold: high", "expected a number, got 'high'"),
        ("reward_weights: [1, heavy]", "expected a number, got 'heavy'"),
        ("clustering: [closure]", "expected a text, got a list"),
        ("dtype: float8", "invalid choice: 'float8'"),
        ("reward_funcs: {brevity: 1}", "expected a list, got a mapping"),
    ],
)
def test_wrong_types_name_the_key(config, error_of, line, expected):
    path = config(line)
    assert f"{path}: `{line.split(':')[0]}`: {expected}" in error_of("--config", path)


def test_wrong_types_of_the_command_line(error_of):
    assert "--max_steps" in error_of("--max_steps", "8.5") and "whole number" in error_of("--max_steps", "8.5")
    assert "true or false" in error_of("--use_peft", "maybe")


def test_words_that_yaml_takes_for_something_else_stay_words(parse, config):
    values = parse(
        "--config",
        config(
            "eval_strategy: no\nscale_rewards: none\nrun_name: 007\nhub_model_id: 1e5\npartition_device: 'null'\n"
            "dataset_name: 2024-01-31\nresume_from_checkpoint: true\n"
        ),
    )
    assert values["eval_strategy"] == "no"
    assert values["scale_rewards"] == "none"
    assert (values["run_name"], values["hub_model_id"], values["dataset_name"]) == ("007", "1e5", "2024-01-31")
    assert values["resume_from_checkpoint"] == "true"
    assert values["partition_device"] == "null"


def test_null_is_none_where_it_may_be(parse, config):
    values = parse("--config", config("partition_threshold: null\nrun_name: ~\nnum_generations_eval: none\n"))
    assert values["partition_threshold"] is None and values["run_name"] is None
    assert values["num_generations_eval"] is None
    assert parse("--partition_threshold", "none")["partition_threshold"] is None


def test_lists_and_mappings(parse, config):
    text = (
        "reward_funcs: [accuracy_reward, my.brevity]\nreward_weights: [5e-1, 1]\nlora_target_modules: all-linear\n"
        "report_to: [none]\nmodel_init_kwargs: {num_hidden_layers: 3, rope_theta: 1e4, tie: no}\n"
        "lr_scheduler_kwargs:\n  min_lr: 1e-7\npad_to_multiple_of: 8\n"
    )
    values = parse("--config", config(text))
    assert values["reward_funcs"] == ["accuracy_reward", "my.brevity"]
    assert values["reward_weights"] == [0.5, 1.0]
    assert values["lora_target_modules"] == "all-linear"  # `ModelConfig` takes a list of one apart
    assert values["model_init_kwargs"] == {"num_hidden_layers": 3, "rope_theta": 10000.0, "tie": False}
    assert values["lr_scheduler_kwargs"] == {"min_lr": 1e-7}
    assert values["pad_to_multiple_of"] == 8
    values = parse(
        "--reward_funcs", "a.b", "c.d", "--reward_weights", "1", "-0.5", "--model_init_kwargs", '{"tie": false}'
    )
    assert values["reward_funcs"] == ["a.b", "c.d"] and values["reward_weights"] == [1.0, -0.5]
    assert values["model_init_kwargs"] == {"tie": False}
    assert parse("--config", config("reward_funcs: accuracy_reward"))["reward_funcs"] == ["accuracy_reward"]


def test_env_is_exported(parse, config, monkeypatch):
    for name in ("SCRIPT_TEST_A", "SCRIPT_TEST_B"):
        monkeypatch.setenv(name, "before")
    path = config("env:\n  SCRIPT_TEST_A: 1e-3\n  SCRIPT_TEST_B: 'yes'\nbeta: 0\n")
    parse("--config", path)
    assert (os.environ["SCRIPT_TEST_A"], os.environ["SCRIPT_TEST_B"]) == ("1e-3", "yes")


def test_a_value_that_the_configuration_refuses_has_no_traceback(config, error_of):
    assert "`clustering` is 'closur'" in error_of("--config", config("clustering: closur"))
    assert "lies in [0, 1]" in error_of("--partition_threshold", "2")


def test_no_file_of_arguments_is_read_beside_the_program(parse, tmp_path, monkeypatch):
    (tmp_path / "program.args").write_text("--seed 1234")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "program.py")])
    assert parse()["seed"] == 42
