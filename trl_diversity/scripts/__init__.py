# SPDX-License-Identifier: Apache-2.0
"""One module per command of `trl-diversity`, and what they share."""
