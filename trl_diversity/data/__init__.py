# SPDX-License-Identifier: Apache-2.0
"""Training and test data: what to keep of published data sets, and how long prompts are for a policy."""
