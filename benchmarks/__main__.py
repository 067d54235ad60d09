# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks`: time what must be fast, and write bench.md and bench.json."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


TOPICS = ("partition", "decoder", "default", "likelihood", "trainer", "start", "growth", "evaluation")


def main(argv: list[str] | None = None) -> None:
    """Run the topics asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/results"), help="folder for bench.md and bench.json")
    parser.add_argument(
        "--topics", nargs="*", choices=TOPICS, default=list(TOPICS), help="what to time; none to time servers alone"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which medians are taken")
    parser.add_argument(
        "--servers", nargs="*", default=[], help="URLs of running classifier servers, to time them too"
    )
    parser.add_argument(
        "--save-classifier", metavar="DIRECTORY", help="only save the classifier that these servers must serve"
    )
    parser.add_argument("--quick", action="store_true", help="small cases and one round, to check that it runs")
    args = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    if args.save_classifier is not None:
        from benchmarks.models import minilm_classifier

        minilm_classifier().save_pretrained(args.save_classifier)
        return

    from benchmarks.report import write_report

    rows = []
    for topic in args.topics:
        for row in _rows(topic)(1 if args.quick else args.rounds, args.quick):
            rows.append(row)
            print(row, flush=True)
    if args.servers:
        from benchmarks.servers import server_rows

        for row in server_rows(args.servers, 1 if args.quick else args.rounds, args.quick):
            rows.append(row)
            print(row, flush=True)
    command = shlex.join(["python", "-m", "benchmarks", *(sys.argv[1:] if argv is None else argv)])
    print(f"Table: {write_report(rows, args.output, command)}")


def _rows(topic: str) -> Callable[[int, bool], Iterator]:
    # Only now: each topic loads what it needs
    if topic in ("partition", "decoder", "default"):
        from benchmarks import partition

        by_topic = {
            "partition": partition.cross_encoder_rows,
            "decoder": partition.decoder_rows,
            "default": partition.default_rows,
        }
        return by_topic[topic]
    if topic == "likelihood":
        from benchmarks.likelihood import likelihood_rows

        return likelihood_rows
    if topic == "trainer":
        from benchmarks.hook import hook_rows

        return hook_rows
    if topic == "start":
        from benchmarks.start import start_rows

        return start_rows
    if topic == "growth":
        from benchmarks.growth import growth_rows

        return growth_rows
    from benchmarks.evaluation import evaluation_rows

    return evaluation_rows


if __name__ == "__main__":
    main()
