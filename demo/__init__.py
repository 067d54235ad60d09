# SPDX-License-Identifier: Apache-2.0
"""The demo: train a small model with Darling on two CPU cores and show its quality and diversity, before and after."""
