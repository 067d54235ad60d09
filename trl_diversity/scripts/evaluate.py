# SPDX-License-Identifier: Apache-2.0
"""`trl-diversity evaluate WHAT`: finds the module of a benchmark and runs it."""

import sys
from collections.abc import Sequence

from trl_diversity.cli import Command, dispatch


BENCHMARKS = (
    Command("noveltybench", "evaluate_noveltybench", "clusters and utility of the completions of every prompt"),
    Command("pass-at-k", "evaluate_pass_at_k", "share of problems that k samples solve, for k = 1, 2, 4, ..."),
    Command("sweep", "evaluate_sweep", "quality against diversity over temperatures, for several checkpoints"),
    Command("answer-files", "evaluate_answer_files", "write answers for AlpacaEval, Arena-Hard and EQ-Bench"),
    Command("eq-bench-results", "evaluate_eq_bench_results", "win rates per criterion from EQ-Bench results"),
)


def run(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Run a benchmark's command."""
    dispatch(argv, prog or "trl-diversity evaluate", BENCHMARKS, "Measure quality and diversity of completions.")
    if argv and argv[0] in ("-h", "--help"):
        sys.exit(0)  # as the help of every command does
