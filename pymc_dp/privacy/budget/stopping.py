"""Callback of ``pm.sample``: check of the steps of each draw, and the end of chains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pymc_dp.errors import PrivacyLeak
from pymc_dp.privacy.budget.binding import TOKEN

#: Name of a statistic that only private steps have.
STAT_OF_PRIVATE_STEPS = "epsilon_spent"


def check_own(stats: Sequence[Mapping[str, Any]], tokens: set[int]) -> None:
    """Raise unless every step of a draw is private, and on the budget that has these tokens."""
    foreign = [s for s in stats if STAT_OF_PRIVATE_STEPS not in s]
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
        return tuple(self._draws[chain] for chain in sorted(self._draws))

    def after_draw(self, trace: Any, draw: Any) -> None:
        """Count a draw; KeyboardInterrupt if this chain (sequential) or all chains (parallel) have no allocation left."""
        if not any(s["exhausted"] for s in draw.stats):
            self._draws[draw.chain] += 1
            self._exhausted.discard(draw.chain)
            return
        # The step returned its point unchanged, without an access to the data: not a draw.
        self._traces[draw.chain] = trace
        shorten(trace, by=1)
        self._exhausted.add(draw.chain)
        in_this_process = any(s is self.latest for s in draw.stats)
        if in_this_process or len(self._exhausted) >= self._n_chains:
            make_rectangle(self._traces.values())
            self._exhausted.clear()
            raise KeyboardInterrupt

    def __getstate__(self) -> dict[str, Any]:
        # Traces stay in the process that records them.
        return self.__dict__ | {"_traces": {}, "latest": None}


def make_rectangle(traces: Iterable[Any]) -> None:
    """Cut chains to the length of the shortest.

    Chains have different lengths if costs depend on proposals. PyMC keeps the rectangle with most draws, and
    may drop a short chain for it.
    """
    ours = [trace for trace in traces if _can_shorten(trace)]
    lengths = [trace.draw_idx for trace in ours]
    for trace in ours:
        shorten(trace, by=trace.draw_idx - min(lengths))


def shorten(trace: Any, by: int) -> None:
    """Remove the last draws of a trace."""
    if _can_shorten(trace) and trace.draw_idx >= by:
        trace.draw_idx -= by


def _can_shorten(trace: Any) -> bool:
    """Whether this is PyMC's in-memory trace. (release() cuts the idle draws of others.)"""
    return isinstance(getattr(trace, "draw_idx", None), int)
