# SPDX-License-Identifier: Apache-2.0
"""Which measure a trainer gets: its argument goes before the configuration, and that before the checkpoint."""

import pytest
import torch
from transformers import AutoConfig

from tests import tiny
from tests.trainers.helpers import ExactText, FixedDiversity, logged, make_trainer
from trl_diversity.diversity import NgramDiversity, PartitionDiversity, UnlikelinessDiversity
from trl_diversity.equivalence import CrossEncoderEquivalence, EmbeddingEquivalence
from trl_diversity.trainers import diversity_source


HERE = "tests.trainers.plugged_in"


@pytest.fixture(scope="module")
def calibrated_path(tmp_path_factory):
    """A pair classifier whose configuration keeps its own threshold."""
    path = tiny.save_tiny_pair_classifier(tmp_path_factory.mktemp("calibrated"))
    config = AutoConfig.from_pretrained(path)
    config.trl_diversity = {"threshold": 0.37}
    config.save_pretrained(path)
    return path


def measure_of(tmp_path, model, **settings):
    return make_trainer(tmp_path, model, **settings).diversity


def test_an_object_with_score_pairs_is_an_equivalence_model(tmp_path, causal_lm_path):
    judge = ExactText()
    measure = measure_of(tmp_path, causal_lm_path, diversity=judge, clustering="greedy", short_answer_rule=True)
    assert isinstance(measure, PartitionDiversity) and measure.model is judge
    assert (measure.clustering, measure.short_answer_rule, measure.threshold) == ("greedy", True, 0.5)


def test_another_callable_is_a_measure(tmp_path, causal_lm_path):
    measure = FixedDiversity(0.5)
    assert measure_of(tmp_path, causal_lm_path, diversity=measure) is measure


def test_measures_of_the_configuration(tmp_path, causal_lm_path):
    measure = measure_of(tmp_path, causal_lm_path, diversity_measure="ngram", ngram_n=3)
    assert isinstance(measure, NgramDiversity) and measure.n == 3
    measure = measure_of(tmp_path, causal_lm_path, diversity_measure="unlikeliness", beta_rank=0.5)
    assert isinstance(measure, UnlikelinessDiversity) and measure.beta_rank == 0.5
    assert measure_of(tmp_path, causal_lm_path, diversity_measure="none") is None


def test_a_name_is_resolved_by_what_the_checkpoint_is(
    tmp_path, causal_lm_path, pair_classifier_path, sentence_transformer_path
):
    kinds = {pair_classifier_path: CrossEncoderEquivalence, sentence_transformer_path: EmbeddingEquivalence}
    for path, kind in kinds.items():
        for settings in ({"diversity": path}, {"partition_model": path}):
            trainer = make_trainer(tmp_path, causal_lm_path, **settings)
            assert isinstance(trainer.diversity.model, kind)
            trainer.train()
            assert logged(trainer, "diversity/pairs_scored")[0] > 0
    with pytest.raises(ValueError, match="(?s)no equivalence model.*sequence classifier.*sentence-transformers"):
        make_trainer(tmp_path, causal_lm_path, diversity=causal_lm_path)
    with pytest.raises(FileNotFoundError, match="/no/such/model"):
        make_trainer(tmp_path, causal_lm_path, partition_model="/no/such/model")


def test_precedence_of_model_and_threshold(tmp_path, causal_lm_path, pair_classifier_path, calibrated_path):
    def threshold(**settings):
        return measure_of(tmp_path, causal_lm_path, **settings).threshold

    assert threshold(partition_model=calibrated_path) == 0.37
    assert threshold(partition_model=calibrated_path, partition_threshold=0.61) == 0.61
    # The argument goes before `partition_model`; a threshold of the configuration holds for either.
    assert threshold(diversity=calibrated_path, partition_model=pair_classifier_path) == 0.37
    assert threshold(diversity=calibrated_path, partition_threshold=0.61) == 0.61


def test_the_threshold_decides_what_is_one_cluster(tmp_path, causal_lm_path, pair_classifier_path):
    for threshold, clusters in ((0.0, 1), (1.0, 4)):
        trainer = make_trainer(
            tmp_path, causal_lm_path, partition_model=pair_classifier_path, partition_threshold=threshold
        )
        trainer.train()
        assert logged(trainer, "diversity/clusters_per_group") == [clusters]


def test_device_type_and_remote_code_reach_the_loader(tmp_path, causal_lm_path, monkeypatch):
    calls = []

    def load(name_or_path, **kwargs):
        calls.append((name_or_path, kwargs))
        return ExactText()

    monkeypatch.setattr(diversity_source, "load_equivalence_model", load)
    make_trainer(tmp_path, causal_lm_path, partition_model="some/model")
    chosen = {"partition_device": "meta", "partition_dtype": "float16", "partition_threshold": 0.2}
    make_trainer(tmp_path, causal_lm_path, partition_model="some/model", trust_remote_code=True, **chosen)
    defaults, other = (kwargs for _, kwargs in calls)
    assert [name for name, _ in calls] == ["some/model"] * 2
    assert defaults == {"threshold": None, "device": "cpu", "dtype": None, "trust_remote_code": False}
    assert other == {"threshold": 0.2, "device": "meta", "dtype": "float16", "trust_remote_code": True}


def test_data_type_of_a_local_model(tmp_path, causal_lm_path, pair_classifier_path):
    def data_type(**settings):
        model = measure_of(tmp_path, causal_lm_path, partition_model=pair_classifier_path, **settings).model
        modules = [value for value in vars(model).values() if isinstance(value, torch.nn.Module)]
        return next(modules[0].parameters()).dtype

    assert data_type() == torch.float32
    assert data_type(partition_dtype="bfloat16") == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "mean"),
    [("NamedModel", 1.0), ("NamedMeasure", 1.0), ("measure_instance", 0.5), ("measure_function", 0.25)],
)
def test_a_dotted_path_names_a_measure_or_a_model(tmp_path, causal_lm_path, name, mean):
    trainer = make_trainer(tmp_path, causal_lm_path, diversity_measure=f"{HERE}.{name}")
    trainer.train()
    assert logged(trainer, "diversity/mean") == [mean]


def test_a_dotted_path_finds_modules_of_the_working_directory(tmp_path, causal_lm_path, monkeypatch):
    (tmp_path / "my_measures.py").write_text("def other(groups):\n    raise RuntimeError('mine was called')\n")
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(tmp_path / "output", causal_lm_path, diversity_measure="my_measures.other")
    with pytest.raises(RuntimeError, match="mine was called"):
        trainer.train()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{HERE}.Missing", "plugged_in.Missing"),
        ("no_such_module.Measure", "no_such_module"),
        (f"{HERE}.not_a_measure", "not_a_measure.*float"),
        (".relative", ".relative"),
    ],
)
def test_a_dotted_path_to_nothing_is_refused_before_anything_is_trained(tmp_path, causal_lm_path, path, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_trainer(tmp_path, causal_lm_path, diversity_measure=path)


def test_no_partition_model_is_refused_with_the_ways_out(tmp_path, causal_lm_path):
    with pytest.raises(ValueError, match="(?s)`partition_model`.*`diversity=`.*'unlikeliness' or 'none'"):
        make_trainer(tmp_path, causal_lm_path, diversity=None)


@pytest.mark.parametrize(
    ("diversity", "settings", "name"),
    [
        (ExactText(), {"partition_model": "some/model"}, "partition_model"),
        (ExactText(), {"partition_threshold": 0.4}, "partition_threshold"),
        (ExactText(), {"partition_device": "cpu"}, "partition_device"),
        (ExactText(), {"partition_dtype": "float32"}, "partition_dtype"),
        (ExactText(), {"diversity_measure": "ngram"}, "diversity_measure"),
        (FixedDiversity(), {"clustering": "greedy"}, "clustering"),
        (FixedDiversity(), {"short_answer_rule": True}, "short_answer_rule"),
        (FixedDiversity(), {"partition_threshold": 0.4}, "partition_threshold"),
        (FixedDiversity(), {"diversity_measure": "none"}, "diversity_measure"),
        ("some/model", {"diversity_measure": "unlikeliness"}, "diversity_measure"),
    ],
)
def test_an_object_and_settings_for_another_are_refused(tmp_path, causal_lm_path, diversity, settings, name):
    with pytest.raises(ValueError, match=f"`diversity` was given.*`{name}`"):
        make_trainer(tmp_path, causal_lm_path, diversity=diversity, **settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("NamedModel", {"partition_threshold": 0.4}),
        ("NamedModel", {"partition_model": "some/model"}),
        ("NamedMeasure", {"clustering": "greedy"}),
        ("NamedMeasure", {"partition_dtype": "float32"}),
        ("measure_function", {"ngram_n": 3}),
        ("measure_function", {"short_answer_rule": True}),
    ],
)
def test_a_dotted_path_and_settings_for_another_are_refused(tmp_path, causal_lm_path, name, settings):
    with pytest.raises(ValueError, match=f"`{next(iter(settings))}`"):
        make_trainer(tmp_path, causal_lm_path, diversity_measure=f"{HERE}.{name}", **settings)


@pytest.mark.parametrize("diversity", [3, ["some/model"], NgramDiversity, ExactText])
def test_what_is_neither_is_refused(tmp_path, causal_lm_path, diversity):
    """Also a class where an instance is meant."""
    with pytest.raises(TypeError, match="`diversity` is .*accepted are"):
        make_trainer(tmp_path, causal_lm_path, diversity=diversity)


def test_inverse_size_needs_a_measure_with_clusters(tmp_path, causal_lm_path):
    trainer = make_trainer(tmp_path, causal_lm_path, diversity=FixedDiversity(), diversity_norm="inverse_size")
    with pytest.raises(ValueError, match="inverse_size.*clusters"):
        trainer.train()
