"""What a guarantee is worth: its assumptions, the power of attacks, and warnings if it gives little protection."""

from __future__ import annotations

import math

from typing import Any

import numpy as np

from scipy.special import ndtr, ndtri

from pymc_dp.privacy.accounting.composition import Cost

#: A larger epsilon gives practically no protection.
_WEAK_EPSILON = 20.0
_PUBLIC_NUMBER = "The number of records is public (under substitution)."
_UNITS = "Each privacy unit's rows appear in one record only, and no record's contribution depends on another record."
_ASSUMPTIONS = (
    "Only the chain's states, accept/reject outcomes and proposal distances are released, by release() or sample().",
    "Priors, clip bounds, proposals, noise scales and initial points were not chosen by looking at the data.",
    _UNITS,
)
#: The same where a few noisy sums are released, and no chain accesses the data.
_ASSUMPTIONS_OF_SUMS = (
    "Only the noisy sums are released: posterior draws, chains and diagnostics are computed from these and the public model.",
    "The model, the guess, stand-in records and settings were not chosen by looking at the data.",
    _UNITS,
)


def weak_epsilon(epsilon: float) -> str | None:
    """What a large epsilon allows. (An infinite one is for tests; reports state it.)"""
    if not _WEAK_EPSILON < epsilon < math.inf:
        return None
    return (
        f"epsilon = {epsilon:g} is above {_WEAK_EPSILON:g}: an attacker's odds of being right about a record may grow by a factor e^{epsilon:g}. "
        "This is practically no protection"
    )


def weak_delta(delta: float, n_records: int | None) -> str | None:
    """What a delta that is large for a public number of records allows."""
    if n_records is None or delta * n_records < 1:
        return None
    return (
        f"delta = {delta:g} is not below 1 / (number of records) = {1 / n_records:.2g}: the guarantee then allows a mechanism that publishes one "
        "whole record, drawn at random"
    )


def assumptions(
    substitution: bool, *, chains: bool = True, group: str | None = None
) -> tuple[str, ...]:
    """Assumptions of the guarantee, in words; `chains`: whether chains access the data; `group`: of records."""
    first, *others = _ASSUMPTIONS if chains else _ASSUMPTIONS_OF_SUMS
    disjoint = f"The group of a record depends on this record only{', and is public' if substitution else ''}."
    return (
        first,
        *([_PUBLIC_NUMBER] if substitution else []),
        *([disjoint] if group is not None else []),
        *others,
    )


def strength(bound: Cost | None, secret: bool) -> dict[str, Any]:
    """Fields of a report that follow from a bound on all that the budget pays for, if there is one."""
    cost = Cost.of([]) if bound is None else bound
    protected = bound is not None and secret
    found = {"gaussian_mu": math.sqrt(cost.mu_squared), "zcdp_rho": cost.rho}
    return {
        "protected": protected,
        **{k: None if bound is None or v == math.inf else v for k, v in found.items()},
        "attack_power": {
            name: max_true_positive_rate(cost, rate) if protected else 1.0
            for name, rate in (("0.1%", 0.001), ("1%", 0.01))
        },
    }


def max_true_positive_rate(cost: Cost, false_positive_rate: float) -> float:
    r"""Largest true positive rate of any attack on two neighbouring data sets, at a false positive rate in (0, 1).

    Exact for Gaussian mechanisms: :math:`\Phi(\Phi^{-1}(\alpha) + \mu)` (section 2 of Dong, Roth,
    Su 2022, https://doi.org/10.1111/rssb.12454). Else the smallest that follows from (epsilon, delta) pairs, the one at
    ``delta = 0`` included.
    """
    if cost.free:
        return false_positive_rate
    power = 1.0
    if cost.mu_squared < math.inf:
        power = float(ndtr(ndtri(false_positive_rate) + math.sqrt(cost.mu_squared)))
    pairs = [(e, cost.delta(e, "rdp")) for e in np.geomspace(1e-3, 50, 200).tolist()]
    if cost.pure_epsilon <= 50:
        pairs.append((cost.pure_epsilon, 0.0))
    for epsilon, delta in pairs:
        power = min(
            power,
            math.exp(epsilon) * false_positive_rate + delta,
            1 - math.exp(-epsilon) * (1 - false_positive_rate - delta),
        )
    return power
