# SPDX-License-Identifier: Apache-2.0
"""Reading YAML: safe, no key twice, and no character that a backslash turned into something else."""

import pytest

from trl_diversity.scripts.config_file import read_config


def test_scalars_are_the_text_in_the_file(config):
    values = read_config(config("a: no\nb: 1e2\nc: '  x'\nd:\ne: [1.50, ~, 'y']\nf: {g: 1e-3, h: [no, 2]}\n")).values
    assert values == {"a": "no", "b": "1e2", "c": "  x", "d": None, "e": ["1.50", None, "y"], "f": values["f"]}
    assert values["f"] == {"g": 0.001, "h": [False, 2]}


def test_backslashes_survive_single_quotes_and_blocks(config):
    """FC-073."""
    text = "one: 'put it in \\boxed{}'\ntwo: |-\n  put it in \\boxed{}\nthree: >-\n  put it\n  in \\boxed{}\n"
    values = read_config(config(text + 'four: "put it in \\\\boxed{}"\nfive: put it in \\boxed{}\n')).values
    assert set(values.values()) == {"put it in \\boxed{}"} and len(values) == 5


@pytest.mark.parametrize(
    "command", ["boxed", "alpha", "frac", "vec", "right", "emph", "text", "times", "0", "_", "N", "L"]
)
def test_a_backslash_eaten_by_double_quotes_is_reported(config, command):
    r"""FC-073: `"\boxed"` is a backspace and `oxed`. Every escape that begins a LaTeX command counts."""
    path = config(f'beta: 0\nsystem_prompt: "put it in \\{command}{{}}"\n')
    with pytest.raises(ValueError, match="line 2, `system_prompt`: the text holds") as raised:
        read_config(path)
    assert path in str(raised.value) and "single quotes" in str(raised.value)


def test_control_characters_below_the_top_level_are_found(config):
    path = config('chat_template_kwargs:\n  inner: ["fine", "\\x08"]\nreward_funcs: ["a\\u0007b"]\n')
    with pytest.raises(ValueError) as raised:
        read_config(path)
    assert "line 2, `chat_template_kwargs`" in str(raised.value) and "line 3, `reward_funcs`" in str(raised.value)


def test_line_breaks_and_tabs_on_purpose_are_fine(config):
    values = read_config(config('a: "one\\ntwo"\nb: "one\\t2"\nc: "caf\\u00e9 \\"x\\""\nd: "1\u00a0000"\n')).values
    assert values == {"a": "one\ntwo", "b": "one\t2", "c": 'café "x"', "d": "1\u00a0000"}


def test_a_key_twice_is_an_error(config):
    with pytest.raises(ValueError, match="line 3: the key `beta` was given in line 1 already"):
        read_config(config("beta: 0\nseed: 1\nbeta: 1\n"))
    with pytest.raises(ValueError, match="line 4: the key `a` was given in line 2 already"):
        read_config(config("model_init_kwargs:\n  a: 1\n  b: 1\n  a: 2\n"))


@pytest.mark.parametrize(
    "text",
    ["x: !!python/object/apply:os.system ['touch executed']", "x: !!python/name:os.system", "x: !custom 1"],
)
def test_no_object_is_built(config, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="tag"):
        read_config(config(text))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text", "a: [1\n", "a: 1\n b: 2\n", "a: 1\n---\nb: 2\n"])
def test_what_is_no_mapping_is_an_error_that_names_the_file(config, text):
    path = config(text)
    with pytest.raises(ValueError) as raised:
        read_config(path)
    assert path in str(raised.value)


def test_wrong_encoding_is_an_error(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("a: café".encode("latin-1"))
    with pytest.raises(ValueError, match="UTF-8"):
        read_config(str(path))


def test_anchors_and_merge_keys(config):
    values = read_config(config("<<: &base {beta: 0, seed: 7}\nseed: 8\nagain: *base\n")).values
    assert values["beta"] == "0" and values["seed"] == "8" and values["again"] == {"beta": 0, "seed": 7}


def test_environment(config):
    read = read_config(config("env:\n  A: 1\n  B: yes\n  C: 'x y'\nbeta: 0\n"))
    assert read.environment == {"A": "1", "B": "yes", "C": "x y"}
    assert read.values == {"beta": "0"}
    with pytest.raises(ValueError, match="`env`"):
        read_config(config("env: [A]\n"))
    with pytest.raises(ValueError, match="the value of A is no text"):
        read_config(config("env: {A: [1]}\n"))
