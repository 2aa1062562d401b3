"""Which budgets were spent on which data in this program: in memory only.

A temporary ledger ends with its budget, so two budgets for the same data would each report their own epsilon
only. Here the program remembers the ledgers of every data set, by a hash of the observed data. Data that were
changed, cut or copied into another type count as another data set; one ledger file for a data set holds in any
case.
"""

from __future__ import annotations

import math
import os
import warnings

from collections.abc import Iterable
from typing import NamedTuple

from pymc_dp.errors import LedgerError, PrivacyLeakWarning
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.budget.weakness import cost_of_all

__all__ = ["Together", "forget", "remember", "together", "warn_of_others"]

#: Ledgers by data set and by file. A temporary one that is kept here lasts as long as the program.
_LEDGERS: dict[bytes, dict[str, Ledger]] = {}


class Together(NamedTuple):
    """Spent on the data of a budget, over all ledgers of this program.

    Parameters
    ----------
    others : int
        Number of budgets on other ledgers that have claims.
    epsilon, delta : float or None
        Sums over the ledgers, this one included. None if there are no others, or if they are for another adjacency.

    Notes
    -----
    Basic composition holds for adaptive choices. If ``1 - exp(-x)`` is positive for a sum ``x = y + z``, it is
    at most the sum of the positive parts for ``y`` and for ``z``: so deltas add up as epsilons do.
    """

    others: int
    epsilon: float | None
    delta: float | None


def remember(data_keys: Iterable[bytes], ledger: Ledger) -> None:
    """Remember that a ledger is an account of these data."""
    for key in data_keys:
        _LEDGERS.setdefault(key, {}).setdefault(os.path.realpath(ledger.path), ledger)


def forget() -> None:
    """Forget all data sets: for tests, and for programs that use public data only."""
    _LEDGERS.clear()


def together(data_keys: Iterable[bytes], ledger: Ledger) -> Together:
    """Add up what was spent on these data by all ledgers: claims of worker processes are on disk, and included."""
    known = {path: other for key in data_keys for path, other in _LEDGERS.get(key, {}).items()}
    known.pop(os.path.realpath(ledger.path), None)
    others: set[str] = set()
    spent, comparable = [ledger.spent()], True
    deltas = [ledger.account.delta] if ledger.n_budgets else []
    for other in known.values():
        found, cost = _claimed_on(other)
        others |= found
        if found:
            spent.append(cost)
            deltas.append(other.account.delta)
            comparable = comparable and other.account.adjacency == ledger.account.adjacency
    if not (comparable and others):
        return Together(len(others), None, None)
    return Together(len(others), math.fsum(spent), math.fsum(deltas))


def _claimed_on(ledger: Ledger) -> tuple[set[str], float]:
    """Budgets with claims on a ledger, and the epsilon of all their claims."""
    try:
        return {claim.budget for claim in ledger.claims()}, ledger.spent()
    except LedgerError:  # removed since, but its epsilon stays spent
        return {ledger.path}, math.inf


def warn_of_others(data_keys: Iterable[bytes], ledger: Ledger) -> bool:
    """Warn if other ledgers have claims on these data; return whether there were any."""
    found = together(data_keys, ledger)
    if found.others:
        warnings.warn(
            f"{cost_of_all(*found)}, before this budget. Its report states this budget's cost and that of all together. "
            "For one epsilon per data set, give its budgets one ledger file: PrivacyBudget(..., ledger=path).",
            PrivacyLeakWarning,
            stacklevel=6,
        )
    return found.others > 0
