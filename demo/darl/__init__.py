# SPDX-License-Identifier: Apache-2.0
"""The demo of Darl: train a small model on references alone, and show how probable they become on new questions."""
