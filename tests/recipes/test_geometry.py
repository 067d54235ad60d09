# SPDX-License-Identifier: Apache-2.0
"""Batch geometry against a walk through the micro-batches, and memory against models that were built."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from trl_diversity.scripts.recipe_geometry import BatchGeometry
from trl_diversity.scripts.recipe_memory import KNOWN_SHAPES, MemoryPlan, ModelShape, lora_parameters, shape_of


def walk(geometry: BatchGeometry) -> int:
    """Slow oracle: completions of one generation batch, counted one by one."""
    return sum(
        1
        for _ in range(geometry.steps_per_generation)
        for _ in range(geometry.num_processes)
        for _ in range(geometry.per_device_train_batch_size)
    )


@given(
    processes=st.integers(1, 9),
    micro_batch=st.integers(1, 6),
    accumulation=st.integers(1, 5),
    factor=st.integers(1, 4),
    iterations=st.integers(1, 3),
)
def test_sizes_are_those_of_the_walk(processes, micro_batch, accumulation, factor, iterations):
    """Whole steps: all completions of a batch are used `iterations` times, in steps of equal size."""
    rows = processes * micro_batch * accumulation * factor
    divisors = [n for n in range(2, rows + 1) if rows % n == 0]
    if not divisors:
        return
    geometry = BatchGeometry(processes, micro_batch, accumulation, accumulation * factor, divisors[0], iterations)
    completions = walk(geometry)
    assert geometry.completions_per_generation_batch == completions == rows
    assert geometry.prompts_per_generation_batch * divisors[0] == rows
    assert geometry.optimizer_steps_per_generation == factor * iterations
    used = geometry.prompts_per_optimizer_step * geometry.optimizer_steps_per_generation
    assert used == pytest.approx(geometry.prompts_per_generation_batch * iterations)


def test_a_generation_that_cuts_a_group_is_refused():
    with pytest.raises(ValueError, match=r"10 completions \(2 processes x per_device_train_batch_size=5"):
        BatchGeometry(2, 5, 1, 1, num_generations=8)
    with pytest.raises(ValueError, match="`num_processes` is at least 1; got 0"):
        BatchGeometry(0, 8, 1, 1, 8)


def test_a_step_may_cut_a_group_and_several_generations_may_feed_one():
    geometry = BatchGeometry(1, 4, 3, 2, num_generations=8)
    assert geometry.prompts_per_optimizer_step == 1.5
    assert geometry.optimizer_steps_per_generation == pytest.approx(2 / 3)


def test_tokens_and_pairs():
    geometry = BatchGeometry(8, 4, 8, 8, 8, max_prompt_tokens=512, max_completion_length=1024)
    assert geometry.max_tokens_per_optimizer_step == 256 * 1536
    assert geometry.max_pairs_per_generation_batch == 32 * 28
    assert BatchGeometry(8, 4, 8, 8, 8).max_tokens_per_optimizer_step is None


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen3Config])
def test_parameters_are_those_of_a_built_model(config_class, tied):
    """All but norms, which are left out: below one in a hundred even here."""
    config = config_class(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=tied,
    )
    model = AutoModelForCausalLM.from_config(config)
    built = sum(p.numel() for name, p in model.named_parameters() if "norm" not in name)
    assert shape_of(config).parameters == built


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.55),
        ("Qwen/Qwen3-4B-Base", 4.02),
        ("Qwen/Qwen3-14B-Base", 14.77),
        ("Qwen/Qwen2.5-7B", 7.62),
    ],
)
def test_published_sizes(name, billions):
    assert KNOWN_SHAPES[name].parameters / 1e9 == pytest.approx(billions, abs=0.01)


def test_lora_parameters_are_those_of_peft():
    from peft import LoraConfig, get_peft_model

    shape = ModelShape(300, 64, 160, 3, 4, 2, 32)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    model = get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(r=5, target_modules="all-linear"))
    assert lora_parameters(shape, 5) == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_sharding_divides_what_it_shards_and_nothing_else():
    def parts(processes, sharded):
        return MemoryPlan(ModelShape(300, 64, 160, 3, 4, 2, 32), processes, sharded, 2, 16, 16).gigabytes()

    one, whole, split = parts(1, False), parts(4, False), parts(4, True)
    assert one == whole
    for name in ("weights", "gradients_and_optimizer"):
        assert split[name] == pytest.approx(one[name] / 4)
    for name in ("activations", "logits"):
        assert split[name] == one[name]
    assert math.isclose(split["total"], sum(value for name, value in split.items() if name != "total"))


def test_weights_gradients_and_optimizer_are_what_torch_holds():
    """All but norms, of which the estimate knows nothing."""
    import torch

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    ids = torch.arange(8)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    held = [parameter.grad for parameter in model.parameters()]
    held += [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    parts = MemoryPlan(shape_of(config), 1, False, 1, 4, 4).gigabytes()
    size = sum(tensor.numel() * tensor.element_size() for tensor in held)
    assert parts["gradients_and_optimizer"] * 2**30 == pytest.approx(size, rel=0.01)
    assert parts["weights"] * 2**30 == pytest.approx(size / 3, rel=0.01)
