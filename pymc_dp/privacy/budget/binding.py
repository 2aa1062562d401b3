"""Which budget paid: numbers on draws, and checks that refuse results of another budget.

Every result computed from the data carries the identity of the budget that paid: private starts
its id, each draw of a private step a number derived from it. These numbers are public; they show only that
draws and a budget belong together.
"""

from __future__ import annotations

import secrets

from collections.abc import Iterable
from typing import Any

import numpy as np

from pymc_dp.errors import PrivacyLeak

#: Name of the statistic that holds the number of the step that made a draw; release() drops it.
TOKEN = "budget_token"
#: Low bits of a number for the step, high bits for the budget: 52 in all, exact in a double.
_STEP_BITS, _BUDGET_BITS = 24, 28


def new_token(budget_id: str) -> int:
    """Return a new number for the draws of one step on a budget; 0 is for steps without a budget."""
    return _of_budget(budget_id) << _STEP_BITS | 1 + secrets.randbelow(2**_STEP_BITS - 1)


def _of_budget(budget_id: str) -> int:
    return int(budget_id, 16) % 2**_BUDGET_BITS


def check_paid(what: str, paid_by: str | None, budget_id: str) -> None:
    """Raise if another budget paid for a result computed from the data."""
    if paid_by not in (None, budget_id):
        raise PrivacyLeak(
            f"This {what} was paid for by another budget (id {str(paid_by)[:8]}..., not {budget_id[:8]}...), so results from it would cost "
            f"more than this budget's report states. Make the {what} with this budget, or use the budget that paid. Nothing was accessed."
        )


def check_draws(tokens: Any, registered: Iterable[int], budget_id: str) -> None:
    """Raise unless all draws were made by the steps that are registered on a budget, and by all of them."""
    found = np.asarray(tokens, dtype=float)  # not a number for None
    if not np.isfinite(found).all():
        raise PrivacyLeak(
            f"Some of these draws, or all, do not show which budget paid for them (by the statistic {TOKEN!r}): they were not made by private "
            "steps, or the statistic was removed. Nothing can be released."
        )
    found = np.sort(found.astype(np.int64).reshape(*found.shape[:2], -1), axis=-1)
    expected = np.array(sorted(registered), dtype=np.int64)
    all_steps = np.broadcast_to(expected, (*found.shape[:2], len(expected)))
    if expected.all() and np.array_equal(found, all_steps):
        return
    strange = np.setdiff1d(found, expected)
    if 0 in strange or not expected.all():
        why = "were made by a step with budget=None, for which no budget has paid"
    elif (strange >> _STEP_BITS != _of_budget(budget_id)).any():
        why = "were made by a step on another budget"
    elif strange.size:
        why = "were made by a step that a newer one has replaced on this budget"
    else:
        why = f"were made by {found.shape[-1]} of the {len(expected)} steps on this budget"
    raise PrivacyLeak(
        f"Some of these draws, or all, {why}: the report of this budget (id {budget_id[:8]}...) does not cover them. Release a run with the budget "
        "that was given to its steps; a run with budget=None cannot be released."
    )
