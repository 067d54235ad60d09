# SPDX-License-Identifier: Apache-2.0
"""Table 1 of the Darling paper in the small: seven ways to train the same policy, on this CPU."""
