"""Sums of terms with noise: the one place where a release gets it, and releases that use up a budget."""

from __future__ import annotations

import math

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp.codec import published
from pymc_dp.display import Shown
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.model.sums.exact_sums import GRID_BITS
from pymc_dp.model.terms import Source, Term
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.budget.budget import PrivacyBudget, check_is_budget
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency, Gaussian
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.privacy.randomness.bits import OperatingSystemBits

#: Noise of a run without protection (infinite epsilon), in units of the sensitivity.
NO_PROTECTION = Gaussian(1e-6)


@published
@dataclass(frozen=True, eq=False)
class Release(Shown):
    r"""Sum of a term over private records, with noise: public, since a budget paid for it.

    Parameters
    ----------
    term : Term
        What each record contributes, such as :class:`~pymc_dp.model.ClippedScores`.
    noise : NoiseLaw
        Of the sum, before it is rounded to the unit of the term.
    total : array of shape (n_dim of the term,)
        The noisy sum.

    Examples
    --------
    >>> term = dp.model.ClippedScores(np.zeros(1), bound=1.0, directions=np.eye(1))
    >>> from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
    >>> dp.queries.Release(term, NoiseLaw("gaussian", 20.0, 1), np.array([35.0])).noise_sd
    20.0
    """

    term: Any
    noise: NoiseLaw
    total: np.ndarray

    @property
    def noise_sd(self) -> float:
        """Standard deviation of each coordinate of the noise."""
        return self.noise.sd


def noisy_total(
    source: Source, term: Term, mechanism: Gaussian | L2Laplace, adjacency: Adjacency
) -> Release:
    """Release the sum of a term with the noise of a mechanism; paid for by the caller."""
    law = _law(term, mechanism, adjacency)
    return Release(term, law, source.noisy(term, law, OperatingSystemBits()))


def _law(term: Term, mechanism: Gaussian | L2Laplace, adjacency: Adjacency) -> NoiseLaw:
    return NoiseLaw.of(mechanism, term.sensitivity(adjacency), term.n_dim)


def check_can_be_made(accesses: Accesses, adjacency: Adjacency) -> None:
    """Raise ValueError unless the noise of all these sums can be added, whatever their clip bounds are going to be."""
    for mechanism, _ in accesses:
        assert isinstance(mechanism, Gaussian | L2Laplace)
        # A bound has less than 2**(GRID_BITS + 1) steps; counts change by less.
        NoiseLaw.of(mechanism, adjacency.sensitivity_factor, 1).check(-GRID_BITS - 1)


def check_unused(budget: PrivacyBudget, label: str) -> None:
    """Raise PrivacyBudgetExhausted unless nothing was claimed on a budget that a release is to use up."""
    check_is_budget(budget)
    if budget.steps or budget.one_off_accesses:
        raise PrivacyBudgetExhausted(
            f"A {label} uses up all of a budget, and this one has been used already. Make a new PrivacyBudget; to keep one account for the data "
            "set, give both the same ledger file. Nothing was accessed."
        )


def noise_of_all(budget: PrivacyBudget, label: str, n_dim: int, noise: str) -> Gaussian | L2Laplace:
    """Choose the noise of a vector that all of a budget pays for; nothing is claimed."""
    check_unused(budget, label)
    if budget.epsilon == math.inf:
        return NO_PROTECTION
    return least_noise(
        n_dim, budget.epsilon, budget.delta, noise=noise, accountant=budget.accountant
    )


def release_all(
    budget: PrivacyBudget, label: str, mechanism: Gaussian | L2Laplace, source: Source, term: Term,
    containers: Iterable[Any], n_records: int,
) -> Release:  # fmt: skip
    """Claim all of a budget for the sum of a term, a vector of whole numbers or on the grid of all sums, and release it."""
    _law(term, mechanism, budget.adjacency).check(-GRID_BITS)
    accesses = ((mechanism, 1),)
    budget.spend(label, accesses, containers, n_records, plan=accesses)
    return noisy_total(source, term, mechanism, budget.adjacency)
