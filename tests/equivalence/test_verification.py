# SPDX-License-Identifier: Apache-2.0
"""The child processes that verify answers: limits, restarts, isolation."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trl_diversity.equivalence import MathVerifier, verification


HOSTILE = ("$8$", "\\boxed{\\frac{7^{7^{7^{7^{7}}}} - 7}{12}}")


@pytest.fixture
def verifier():
    model = MathVerifier(num_workers=1, time_limit_seconds=30)
    yield model
    model.close()


def process_of(verifier):
    (worker,) = [verifier._idle.get() for _ in range(verifier.num_workers)]
    verifier._idle.put(worker)
    return worker._process


def fake_math_verify(directory, monkeypatch, comparison):
    """Let children find a math-verify of which the comparison is the given expression."""
    (directory / "math_verify.py").write_text(
        f"def parse(text, **_):\n    return [text]\n\n\ndef verify(gold, given, **_):\n    return {comparison}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(directory))


def test_pairs_are_verified_in_order(verifier):
    assert verifier.verify([("$5$", "\\boxed{5}"), ("$5$", "\\boxed{6}"), ("$0.5$", "\\boxed{1/2}")]) == [
        True,
        False,
        True,
    ]
    assert verifier.verify([]) == []


def test_one_direction_is_that_of_gold_and_prediction(verifier):
    """FC-114."""
    interval, inequality = "$x \\in [3,\\infty)$", "$x \\geq 3$"
    assert verifier.verify([(interval, inequality), (inequality, interval)]) == [False, True]
    assert verifier.verify([(interval, inequality), (inequality, interval)], either_direction=True) == [True, True]


def test_a_hostile_tower_of_powers_is_none_within_the_limit():
    """FC-110."""
    verifier = MathVerifier(num_workers=1, time_limit_seconds=1.0)
    begin = time.monotonic()
    assert verifier.verify([HOSTILE]) == [None]
    assert 1.0 <= time.monotonic() - begin < 60  # starting the child is not part of its limit
    verifier.close()


def test_after_a_verification_past_its_time_a_new_child_takes_over(tmp_path, monkeypatch):
    """FC-110."""
    fake_math_verify(tmp_path, monkeypatch, "gold != ['hang'] or __import__('time').sleep(600)")
    verifier = MathVerifier(num_workers=1, time_limit_seconds=3.0)
    verifier.verify([("a", "a")])
    first = process_of(verifier)
    assert verifier.verify([("a", "a"), ("hang", "hang"), ("a", "a")]) == [True, None, True]
    assert first.poll() is not None
    assert process_of(verifier) is not first
    verifier.close()


def test_a_child_is_used_again(verifier):
    verifier.verify([("$1$", "$1$")])
    first = process_of(verifier)
    verifier.verify([("$2$", "$3$")])
    assert process_of(verifier) is first


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="reads limits from /proc")
def test_the_memory_limit_is_set_in_the_child():
    """FC-111."""
    verifier = MathVerifier(num_workers=1, memory_limit_gb=1.5)
    verifier.verify([("$1$", "$1$")])
    limits = Path(f"/proc/{process_of(verifier).pid}/limits").read_text()
    assert [line.split()[3] for line in limits.splitlines() if line.startswith("Max address space")] == [
        str(int(1.5 * 2**30))
    ]
    verifier.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="address space is limited on Linux")
@pytest.mark.parametrize(("memory_limit_gb", "expected"), [(0.5, None), (2.0, True)])
def test_a_verification_past_its_memory_is_none(tmp_path, monkeypatch, memory_limit_gb, expected):
    """FC-111."""
    fake_math_verify(tmp_path, monkeypatch, "gold != ['big'] or len(bytearray(2**30)) > 0")
    verifier = MathVerifier(num_workers=1, time_limit_seconds=60, memory_limit_gb=memory_limit_gb)
    assert verifier.verify([("small", "small"), ("big", "big"), ("small", "small")]) == [True, expected, True]
    verifier.close()


def test_a_verification_that_raises_is_none_unless_another_reading_is_equal(tmp_path, monkeypatch):
    fake_math_verify(tmp_path, monkeypatch, "gold != ['bad'] or 1 / 0")
    verifier = MathVerifier(num_workers=1)
    assert verifier.verify([("bad", "good"), ("good", "bad")]) == [None, True]
    assert verifier.verify([("bad", "good")], either_direction=True) == [True]
    verifier.close()


def test_several_children_work_at_the_same_time(tmp_path, monkeypatch):
    """FC-112: a batch of slow verifications takes its share of the time, not the sum."""
    fake_math_verify(tmp_path, monkeypatch, "gold == ['$1$'] or __import__('time').sleep(1.5) is None")
    verifier = MathVerifier(num_workers=4)
    verifier.verify([("$1$", "$1$")] * 4)  # starts the children
    begin = time.monotonic()
    assert verifier.verify([("slow", "slow")] * 4) == [True] * 4
    assert time.monotonic() - begin < 4.5  # one after the other would be 6
    verifier.close()


def test_a_child_that_died_while_idle_is_replaced(verifier):
    verifier.verify([("$1$", "$1$")])
    os.kill(process_of(verifier).pid, signal.SIGKILL)
    process_of(verifier).wait()
    assert verifier.verify([("$5$", "$5$")]) == [True]


def test_children_see_no_tokens_and_end_with_their_owner(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_not_for_children")
    verifier = MathVerifier(num_workers=1)
    verifier.verify([("$1$", "$1$")])
    process = process_of(verifier)
    environment = Path(f"/proc/{process.pid}/environ")
    if environment.exists():
        assert b"hf_not_for_children" not in environment.read_bytes()
        assert b"PATH=" in environment.read_bytes()
    del verifier
    gc.collect()
    assert process.poll() is not None


def test_what_is_printed_while_verifying_does_not_mix_with_replies(tmp_path, monkeypatch):
    """The worker's replies travel on a stream of their own."""
    fake_math_verify(tmp_path, monkeypatch, "print('noise') is None")
    worker = Path(verification.__file__).with_name("verification_worker.py")
    result = subprocess.run(
        [sys.executable, "-P", str(worker), "5", str(2**31)],
        input='{"gold": "a", "prediction": "a", "either_direction": false}\n',
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.stdout.splitlines() == ["ready", '{"equal": true}']
    assert "noise" in result.stderr


def test_a_child_that_cannot_start_is_an_error_with_a_cause(monkeypatch, tmp_path):
    broken = tmp_path / "worker.py"
    broken.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(verification, "_WORKER_FILE", broken)
    with pytest.raises(RuntimeError, match=r"did not start \(exit status 3\)"):
        MathVerifier(num_workers=1).verify([("$1$", "$1$")])


@pytest.mark.parametrize("option", ["num_workers", "time_limit_seconds", "memory_limit_gb"])
def test_impossible_numbers_are_refused(option):
    with pytest.raises(ValueError, match=option):
        MathVerifier(**{option: 0})
