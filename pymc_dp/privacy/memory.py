"""Which budgets were spent on which data in this program: in memory only.

A temporary ledger ends with its budget, so that two budgets for the same data do not know of each
other, and each reports its own epsilon alone. Here the program remembers the ledgers of every data
set it has seen, by a hash of what is observed. Data that were changed, cut or copied into another
type are another data set to it: one ledger file for a data set is what holds in any case.
"""

from __future__ import annotations

import math
import os
import warnings

from collections.abc import Iterable
from typing import NamedTuple

from pymc_dp.errors import LedgerError, PrivacyLeakWarning
from pymc_dp.privacy.composition import Cost
from pymc_dp.privacy.ledger import Claim, Ledger
from pymc_dp.privacy.weakness import in_all

__all__ = ["Together", "forget", "remember", "together", "warn_of_others"]

#: Ledgers by data set and by file; kept here, a temporary one lasts as long as the program.
_LEDGERS: dict[bytes, dict[str, Ledger]] = {}


class Together(NamedTuple):
    """What was spent on the data of a budget by all ledgers of this program.

    Parameters
    ----------
    others : int
        Number of budgets on other ledgers that have claims.
    epsilon : float or None
        Of all together, by Rényi divergences, which add up whatever was chosen in view of what.
        None if there are no others, or they are for another adjacency.
    """

    others: int
    epsilon: float | None


def remember(data_keys: Iterable[bytes], ledger: Ledger) -> None:
    """Note that a ledger is an account of these data."""
    for key in data_keys:
        _LEDGERS.setdefault(key, {}).setdefault(os.path.realpath(ledger.path), ledger)


def forget() -> None:
    """Forget all data sets: for tests, and for programs that use public data only."""
    _LEDGERS.clear()


def together(data_keys: Iterable[bytes], ledger: Ledger, delta: float) -> Together:
    """Add up the claims on these data in all ledgers: those of worker processes are on disk, too."""
    known = {path: other for key in data_keys for path, other in _LEDGERS.get(key, {}).items()}
    known.pop(os.path.realpath(ledger.path), None)
    others: set[str] = set()
    claims, comparable, unknown = ledger.claims(), True, False
    for other in known.values():
        try:
            found = other.claims()
        except LedgerError:  # removed since: that does not make it unspent
            others.add(other.path)
            unknown = True
            continue
        others |= {claim.budget for claim in found}
        claims += found
        if found and other.account.adjacency != ledger.account.adjacency:
            comparable = False
    if not (comparable and others):
        return Together(len(others), None)
    return Together(len(others), math.inf if unknown else _epsilon(claims, delta))


def _epsilon(claims: list[Claim], delta: float) -> float:
    if any(not claim.accesses for claim in claims):  # made on an infinite budget
        return math.inf
    return Cost.of(access for claim in claims for access in claim.accesses).epsilon(delta, "rdp")


def warn_of_others(data_keys: Iterable[bytes], ledger: Ledger, delta: float) -> bool:
    """Warn if other ledgers have claims on these data; return whether there were any."""
    found = together(data_keys, ledger, delta)
    if found.others:
        warnings.warn(
            f"{in_all(found.others, found.epsilon, delta)}, before this budget. Its report states this budget's cost and that of all together. "
            "To keep to one epsilon for a data set, give its budgets one ledger file: PrivacyBudget(..., ledger=path).",
            PrivacyLeakWarning,
            stacklevel=6,
        )
    return found.others > 0
