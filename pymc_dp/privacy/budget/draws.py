"""Draws of a run: which budget paid for them, and the end of chains whose share is used up.

Every result computed from the data carries the identity of the budget that paid: private starts
its id, each draw of a private step a number derived from it. These numbers are public; they show only that
draws and a budget belong together.
"""

from __future__ import annotations

import secrets

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

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
    return crc32(budget_id.encode()) % 2**_BUDGET_BITS


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


def check_own(stats: Sequence[Mapping[str, Any]], tokens: set[int]) -> None:
    """Raise unless every step of a draw is private, and on the budget that has these tokens."""
    foreign = [s for s in stats if "epsilon_spent" not in s]  # only private steps have it
    if foreign:
        raise PrivacyLeak(
            "A step that is not private took part in this run (statistics: "
            f"{', '.join(sorted(map(str, foreign[0]))) or 'none'}). PyMC gives variables without a step NUTS on the raw likelihood. "
            "The draws are discarded; let private steps cover all variables."
        )
    if any(TOKEN in s and s[TOKEN] not in tokens for s in stats):
        raise PrivacyLeak(
            "A step of this run is not on the budget that is its callback, but on another one or on none (budget=None). Pass the same "
            "budget to the steps and as callback= to pm.sample. The draws are discarded."
        )


class RunProgress:
    """Progress of the chains of a run: counts draws, and stops chains whose allocation is used up."""

    def __init__(self, n_chains: int) -> None:
        #: The latest statistics of a step in this process.
        self.latest: Any = None
        self._draws: Counter[int] = Counter()
        self.begin(n_chains)

    def begin(self, n_chains: int) -> None:
        """Start a new run: the state of an interrupted one must not end it early."""
        self._n_chains = n_chains
        self._traces: dict[int, Any] = {}
        self._exhausted: set[int] = set()

    def draws_of_chains(self) -> tuple[int, ...]:
        """Number of draws of each chain."""
        return tuple(n for _, n in sorted(self._draws.items()))

    def after_draw(self, trace: Any, draw: Any) -> None:
        """Count a draw; KeyboardInterrupt if this chain (sequential) or all chains (parallel) have no allocation left."""
        if not any(s["exhausted"] for s in draw.stats):
            self._draws[draw.chain] += 1
            self._exhausted.discard(draw.chain)
            return
        # The step returned its point unchanged, without an access to the data: not a draw. Traces on disk are cut by release().
        if isinstance(getattr(trace, "draw_idx", None), int):
            trace.draw_idx = max(trace.draw_idx - 1, 0)
            self._traces[draw.chain] = trace
        self._exhausted.add(draw.chain)
        in_this_process = any(s is self.latest for s in draw.stats)
        if in_this_process or len(self._exhausted) >= self._n_chains:
            # Chains differ in length if costs depend on proposals, and PyMC may drop a short one: all are cut to the shortest.
            for each in self._traces.values():
                each.draw_idx = min(t.draw_idx for t in self._traces.values())
            self._exhausted.clear()
            raise KeyboardInterrupt

    def __getstate__(self) -> dict[str, Any]:
        # Traces stay in the process that records them.
        return self.__dict__ | {"_traces": {}, "latest": None}
