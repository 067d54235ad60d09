# SPDX-License-Identifier: Apache-2.0
"""Property tests take the time that they take, and try the same examples in every run."""

from hypothesis import settings


settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
