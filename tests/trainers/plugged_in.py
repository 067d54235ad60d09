# SPDX-License-Identifier: Apache-2.0
"""Measures and models that tests name by their dotted path."""

from tests.trainers.helpers import ExactText, FixedDiversity


class NamedModel(ExactText):
    """An equivalence model that needs no arguments."""


class NamedMeasure(FixedDiversity):
    """A diversity measure that needs no arguments."""

    name = "named"


measure_instance = NamedMeasure(0.5)
not_a_measure = 3.14


def measure_function(groups):
    """A diversity measure that is a plain function, without the two attributes."""
    return FixedDiversity(0.25)(groups)
