"""Texts about guarantees that give little protection, for warnings and reports."""

from __future__ import annotations

import math
import warnings

from pymc_dp.errors import WeakGuaranteeWarning

#: A larger epsilon gives practically no protection.
WEAK_EPSILON = 20.0


def weak_epsilon(epsilon: float) -> str:
    """Text on what a large epsilon allows."""
    return (
        f"epsilon = {epsilon:g} is above {WEAK_EPSILON:g}: an attacker's odds of being right about a record may grow by a factor e^{epsilon:g}. "
        "This is practically no protection"
    )


def weak_delta(delta: float, n_records: int) -> str:
    """Text on what a large delta allows."""
    return (
        f"delta = {delta:g} is not below 1 / (number of records) = {1 / n_records:.2g}: the guarantee then allows a mechanism that publishes one "
        "whole record, drawn at random"
    )


def warn_of_epsilon(epsilon: float) -> None:
    """Warn of a large epsilon. (An infinite one is for tests; reports state it.)"""
    if WEAK_EPSILON < epsilon < math.inf:
        text = f"{weak_epsilon(epsilon)}. Usual values are 0.1 to 10."
        warnings.warn(text, WeakGuaranteeWarning, stacklevel=3)


def warn_of_delta(delta: float, n_records: int) -> bool:
    """Warn of a large delta, and return whether it is large; to be called only if the number of records is public."""
    if delta * n_records >= 1:
        text = f"{weak_delta(delta, n_records)}. Choose delta well below it, such as {0.01 / n_records:.1g}."
        warnings.warn(text, WeakGuaranteeWarning, stacklevel=6)
    return delta * n_records >= 1
