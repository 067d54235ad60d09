# SPDX-License-Identifier: Apache-2.0
"""`make bench` in its quick form: every topic runs, and the report holds its rows."""

import json

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.report import write_report
from benchmarks.timing import FLOOR, PEER, PRODUCT, Row, time_row


def test_ratios_are_medians_of_rounds(monkeypatch):
    """Three rounds of (product, peer, floor) in which the clock is known."""
    clock = iter([0, 1, 0, 3, 0, 1, 0, 2, 0, 2, 0, 1, 0, 1, 0, 5, 0, 4])
    monkeypatch.setattr("benchmarks.timing.time.perf_counter", lambda: next(clock))
    row = time_row("topic", "case", {PRODUCT: list, PEER: list, FLOOR: list}, rounds=3)
    assert row.seconds == {PRODUCT: 1, PEER: 3, FLOOR: 1}
    assert row.speedup == 3  # of 3/1, 2/2, 5/1
    assert row.floor_share == 1  # of 1/1, 1/2, 4/1


def test_the_report_holds_the_rows_and_says_that_no_gpu_was_there(tmp_path, capsys):
    command.main(["--quick", "--topics", "trainer", "--output", str(tmp_path)])
    (run,) = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["runs"]
    rows = run["rows"]
    assert [row["topic"] for row in rows] == ["trainer", "trainer"]
    text = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert all(f"| {row['case']} |" in text for row in rows)
    assert ("Not measured: this machine has none." in text) == (not torch.cuda.is_available())


def test_topics_that_are_not_timed_again_stay_with_their_command(tmp_path):
    def row(topic, case):
        return Row(topic, case, {PRODUCT: 1.0})

    write_report([row("a", "first"), row("b", "first")], tmp_path, "one")
    write_report([row("b", "second"), row("c", "second")], tmp_path, "two")
    runs = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["runs"]
    found = [(run["command"], line["topic"], line["case"]) for run in runs for line in run["rows"]]
    assert found == [("one", "a", "first"), ("two", "b", "second"), ("two", "c", "second")]
    text = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert text.index("`one`") < text.index("## A") < text.index("`two`") < text.index("## B") and "## C" in text


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_topic_runs(tmp_path, capsys):
    command.main(["--quick", "--output", str(tmp_path)])
    (run,) = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["runs"]
    rows = run["rows"]
    assert len({row["topic"] for row in rows}) == len(command.TOPICS)
