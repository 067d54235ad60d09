# SPDX-License-Identifier: Apache-2.0
"""The simulation behind docs/why_no_std.md."""

import numpy as np
import pytest

from demo import why_no_std


def test_advantages_are_grpos():
    rewards = np.array([[0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 5.0, 5.0]])
    plain = why_no_std.advantages(rewards, with_std=False)
    assert plain.tolist() == [[-1.5, -0.5, 0.5, 1.5], [0, 0, 0, 0]]
    divided = why_no_std.advantages(rewards, with_std=True)
    assert divided[0] == pytest.approx(plain[0] / np.std([0, 1, 2, 3], ddof=1), abs=1e-3)
    assert divided[1].tolist() == [0, 0, 0, 0]


def test_share_of_noise_is_what_theory_says():
    """Without the division it is the ratio of the variances; with it, the mean of every group's own ratio."""
    generator = np.random.default_rng(0)
    spread = np.repeat([0.1, 3.0], 20_000)
    quality = generator.normal(size=(40_000, 8)) * spread[:, None]
    noise = 0.5 * generator.normal(size=quality.shape)
    variances = np.array([0.1**2, 3.0**2])
    assert why_no_std.noise_share(quality, noise, False) == pytest.approx(0.25 / (0.25 + variances.mean()), rel=0.02)
    ratios = 0.25 / (0.25 + variances)
    assert why_no_std.noise_share(quality, noise, True) == pytest.approx(ratios.mean(), rel=0.02)
    assert why_no_std.noise_share(quality, 0 * noise, True) == 0


def test_the_page_says_what_the_script_finds(tmp_path, capsys):
    why_no_std.main(["--output", str(tmp_path / "figure.png")])
    shown = capsys.readouterr().out.splitlines()
    page = (why_no_std.Path(why_no_std.__file__).parents[1] / "docs" / "why_no_std.md").read_text()
    for line in shown[1:7]:  # noise, without, with
        noise, without, with_std = line.split()
        assert f"| {noise} | {without} | {with_std} |" in page
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
