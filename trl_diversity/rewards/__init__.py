# SPDX-License-Identifier: Apache-2.0
"""Quality rewards: how good is a completion by itself?"""
