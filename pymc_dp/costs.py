"""What is left of a budget, and how many decisions it pays for: to compare plans."""

from __future__ import annotations

import math

from functools import lru_cache

from pymc_dp.acceptance import AcceptanceRule, Barker
from pymc_dp.privacy.adaptive import AdaptiveComposition
from pymc_dp.privacy.allowance import WITH_FILTER
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.ledger import Accesses
from pymc_dp.privacy.mechanisms import Adjacency, Decision, whole

__all__ = [
    "LEAST_DRAWS",
    "check_account",
    "check_draws",
    "check_filter",
    "decision_cost",
    "decisions",
    "sides_of",
]

#: Draws of each chain that a plan expects at least: of fewer nothing could be said.
LEAST_DRAWS = 10


def check_draws(max_draws: int) -> int:
    """Refuse a limit on draws that no plan keeps."""
    return whole("max_draws", max_draws, LEAST_DRAWS)


def check_filter(budget: PrivacyBudget) -> None:
    """Refuse accountants that decisions of varying cost cannot be paid by, before anything else is."""
    if budget.accountant not in WITH_FILTER:
        raise ValueError(
            f"The accountant {budget.accountant!r} has no filter, which decisions of varying cost need: use 'best', 'rdp' or 'gaussian'."
        )


def check_account(budget: PrivacyBudget, besides: Accesses) -> None:
    """Raise unless the account pays for these accesses and all that is then left of the budget; nothing is claimed."""
    if budget.epsilon == math.inf:  # and so has the account
        return
    left = budget.left(besides)
    adaptive, account = budget.terms.adaptive, budget.ledger.account.adaptive
    typical = Decision(Barker(), 0.1)  # of a surrogate's decisions
    rest = [(adaptive.share_on(account, left, [typical]), 1)] if left > 0 else []
    budget.ledger.check([*besides, *rest], "this run")


def decisions(left: float, cost: float, chains: int, most: float) -> float:
    """Decisions of each chain that a budget pays for."""
    return min(most, left / cost / chains)


def sides_of(budget: PrivacyBudget) -> float:
    """Most that neighbouring data sets change a sum of clipped terms by, in units of the clip bound."""
    return {Adjacency.SUBSTITUTE: 2.0, Adjacency.ADD_REMOVE: 1.0}[budget.adjacency]


def decision_cost(budget: PrivacyBudget, rule: AcceptanceRule, sensitivity: float) -> float:
    """Price of a decision in what the budget composes adaptively, within a few per cent: to compare plans."""
    # Relative to the square it hardly differs within a factor of two.
    rounded = 2.0 ** round(math.log2(min(max(2.0**-7, sensitivity), 2.0**4)))
    return _per_square(budget.terms.adaptive, rule, rounded) * sensitivity**2


@lru_cache(maxsize=256)
def _per_square(adaptive: AdaptiveComposition, rule: AcceptanceRule, sensitivity: float) -> float:
    return adaptive.price(Decision(rule, sensitivity)) / sensitivity**2
