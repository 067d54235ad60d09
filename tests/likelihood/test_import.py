# SPDX-License-Identifier: Apache-2.0
"""The pure parts are usable without torch being imported."""

import subprocess
import sys

from trl_diversity import likelihood


def test_importing_the_package_imports_no_torch():
    code = (
        "import sys, trl_diversity.likelihood as package\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "assert package.darl_reward([0.5], [0.5]) == [0.5]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_public_name_exists():
    assert set(likelihood._LAZY) < set(likelihood.__all__)
    assert all(getattr(likelihood, name) for name in likelihood.__all__)
