"""What is left of a budget, and how many decisions it pays for: to compare plans."""

from __future__ import annotations

import math

from functools import lru_cache

import numpy as np

from pymc_dp.acceptance import AcceptanceRule
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.composition import Cost, renyi_budget
from pymc_dp.privacy.filters import RenyiShare
from pymc_dp.privacy.ledger import Accesses
from pymc_dp.privacy.mechanisms import ORDERS, Adjacency, Decision, whole

__all__ = [
    "LEAST_DRAWS",
    "check_account",
    "check_draws",
    "check_filter",
    "decision_cost",
    "decisions",
    "renyi_left",
    "sides_of",
]

#: Draws of each chain that a plan expects at least: of fewer nothing could be said.
LEAST_DRAWS = 10


def check_draws(max_draws: int) -> int:
    """Refuse a limit on draws that no plan keeps."""
    return whole("max_draws", max_draws, LEAST_DRAWS)


def check_filter(budget: PrivacyBudget) -> None:
    """Refuse accountants that decisions of varying cost cannot be paid by, before anything else is."""
    if budget.accountant not in ("best", "rdp"):
        raise ValueError(
            f"The accountant {budget.accountant!r} has no filter, which decisions of varying cost need: use 'best' or 'rdp'."
        )


def renyi_left(budget: PrivacyBudget, besides: Accesses = ()) -> np.ndarray:
    """Rényi divergences that are left of a budget, after what is claimed besides."""
    claimed = [access for accesses in budget.outside.values() for access in accesses]
    return renyi_budget(ORDERS, budget.epsilon, budget.delta) - Cost.of([*claimed, *besides]).renyi


def check_account(budget: PrivacyBudget, besides: Accesses) -> None:
    """Raise unless the account pays for these accesses and all that is then left of the budget; nothing is claimed."""
    if budget.epsilon == math.inf:  # and so has the account
        return
    left = renyi_left(budget, besides)
    best = int(np.argmax(left / ORDERS))
    rest = RenyiShare(float(ORDERS[best]), float(left[best]) * (1 - 1e-6))
    budget.ledger.check([*besides, (rest, 1)], "this run")


def decisions(left: np.ndarray, cost: np.ndarray, chains: int, most: float) -> float:
    """Decisions of each chain that a Rényi budget pays for."""
    return min(most, float(np.max(left / cost)) / chains)


def sides_of(budget: PrivacyBudget) -> float:
    """Most that neighbouring data sets change a sum of clipped terms by, in units of the clip bound."""
    return {Adjacency.SUBSTITUTE: 2.0, Adjacency.ADD_REMOVE: 1.0}[budget.adjacency]


def decision_cost(rule: AcceptanceRule, sensitivity: float) -> np.ndarray:
    """Rényi divergence of a decision at all orders, within a few per cent: to compare plans."""
    # Relative to the square it hardly differs within a factor of two.
    rounded = 2.0 ** round(math.log2(min(max(2.0**-7, sensitivity), 2.0**4)))
    return _per_square(rule, rounded) * sensitivity**2


@lru_cache(maxsize=256)
def _per_square(rule: AcceptanceRule, sensitivity: float) -> np.ndarray:
    return Decision(rule, sensitivity).renyi(ORDERS) / sensitivity**2
