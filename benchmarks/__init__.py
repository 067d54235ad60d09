# SPDX-License-Identifier: Apache-2.0
"""Timings against the plain way to do the same and against the arithmetic that cannot be avoided."""
