# SPDX-License-Identifier: Apache-2.0
"""What a `DarlConfig` holds, and what it refuses."""

import re
from dataclasses import fields

import pytest
from transformers import HfArgumentParser
from trl import GRPOConfig

from trl_diversity.trainers import DarlConfig


QUIET = {"bf16": False, "use_cpu": True, "report_to": "none"}

# ARCHITECTURE.md
DEFAULTS = {
    "alpha": 1.0,
    "delta_weight": 0.01,
    "threshold_type": "dynamic",
    "gamma": 8.0,
    "tau": None,
    "debias": False,
    "aggregation": "mean_prob",
    "answer_format": "tags",
    "format_style": "r1",
    "format_weight": 0.1,
    "reference_column": "answer",
    "drop_empty_references": False,
    "std_filter_beta": None,
    "repetition_penalty_reward": False,
    "scorer_model": None,
    "score_on_server": False,
    "score_path": "auto",
    "score_tokens_per_forward": 8192,
}
CHANGED = {"beta": 0.0, "epsilon_high": 0.27, "scale_rewards": "group", "loss_type": "dapo"}


def configured(tmp_path, **settings):
    return DarlConfig(str(tmp_path), **QUIET, **settings)


def test_defaults(tmp_path):
    args = configured(tmp_path)
    assert {name: getattr(args, name) for name in DEFAULTS | CHANGED} == DEFAULTS | CHANGED


def test_no_other_argument_of_grpo_is_added_or_changed(tmp_path):
    args, plain = configured(tmp_path), GRPOConfig(str(tmp_path), **QUIET)
    names = {field.name for field in fields(GRPOConfig)}
    assert {field.name for field in fields(DarlConfig)} - names == set(DEFAULTS)
    different = {name for name in names if getattr(args, name) != getattr(plain, name)}
    assert different <= set(CHANGED)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold_type": "sad"}, "threshold_type='sad' is unknown"),
        ({"aggregation": "mean"}, "aggregation='mean' is unknown"),
        ({"format_style": "r2"}, "`format_style` is 'r2'; accepted are 'r1', 'r1_nothink'"),
        ({"score_path": "slow"}, "`score_path` is 'slow'; accepted are 'auto', 'fast', 'two_pass'"),
        ({"answer_format": "xml"}, "answer_format='xml' has no group"),
        ({"answer_format": "("}, "is no regular expression"),
        ({"gamma": 0.0}, "gamma=0.0 must be a number above 0"),
        ({"gamma": float("nan")}, "gamma=nan must be a number above 0"),
        ({"format_weight": 1.1}, "format_weight=1.1 lies outside"),
        ({"score_tokens_per_forward": 0}, "`score_tokens_per_forward` is at least 1; got 0"),
        ({"std_filter_beta": 0.0}, "`std_filter_beta` lies above 0; got 0.0"),
        ({"alpha": float("nan")}, "`alpha` is nan"),
        ({"alpha": float("inf")}, "`alpha` is inf"),
        ({"delta_weight": float("nan")}, "`delta_weight` is nan"),
        # A negative threshold, below which nothing lies
        ({"aggregation": "mean_logprob"}, "use threshold_type='static' with a tau, or another aggregation"),
        # Settings without effect
        ({"tau": 0.1}, "`tau` has no effect with `threshold_type: dynamic`"),
        ({"threshold_type": "static", "tau": 0.1, "gamma": 10.0}, "`gamma` has no effect with"),
        ({"threshold_type": "static"}, "threshold_type='static' needs a tau of at least 0, got None"),
        ({"threshold_type": "static", "tau": -0.1}, "needs a tau of at least 0, got -0.1"),
        ({"answer_format": "boxed", "format_style": "r1_nothink"}, "`format_style` belongs to `answer_format: tags`"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "Use 'sum_then_normalize'"),
        # The case FC-043
        ({"remove_unused_columns": True}, "`remove_unused_columns=True` would drop the column"),
        ({"remove_unused_columns": True, "reference_column": "gold"}, "'gold'"),
        (
            {"steps_per_generation": 4, "gradient_accumulation_steps": 1, "save_strategy": "steps", "save_steps": 10},
            "`save_steps=10` cuts a generation batch",
        ),
    ],
)
def test_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        configured(tmp_path, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold_type": "static", "tau": 0.0},
        {"threshold_type": "static", "tau": 0.2, "aggregation": "mean_logprob"},
        {"answer_format": r"answer is (\d+)"},
        {"answer_format": "boxed"},
        {"delta_weight": 0.0, "debias": True, "std_filter_beta": 0.5, "repetition_penalty_reward": True},  # RLPR
        {"steps_per_generation": 4, "gradient_accumulation_steps": 1, "save_strategy": "steps", "save_steps": 8},
    ],
)
def test_accepted(tmp_path, settings):
    args = configured(tmp_path, **settings)
    assert all(getattr(args, name) == value for name, value in settings.items())


def test_every_setting_is_documented():
    for field in fields(DarlConfig):
        if field.name in DEFAULTS:
            assert field.metadata.get("help"), field.name
            assert f"{field.name} (`" in DarlConfig.__doc__, field.name
    for name in CHANGED:
        assert f"`{name}" in DarlConfig.__doc__, name


def test_settings_from_a_file_and_from_a_command_line(tmp_path):
    """Optional numbers are numbers, whatever their notation, and the help can be printed."""
    parser = HfArgumentParser(DarlConfig)
    (args,) = parser.parse_dict({"output_dir": str(tmp_path), "threshold_type": "static", "tau": 1e-2, **QUIET})
    assert args.tau == 0.01
    line = ["--output_dir", str(tmp_path), "--bf16", "False", "--use_cpu", "--report_to", "none"]
    (args,) = parser.parse_args_into_dataclasses(
        [*line, "--std_filter_beta", "5e-1", "--debias", "--alpha", "2", "--threshold_type", "static", "--tau", "0"]
    )
    assert (args.std_filter_beta, args.debias, args.alpha, args.tau) == (0.5, True, 2.0, 0.0)
    assert "std_filter_beta" in parser.format_help()
