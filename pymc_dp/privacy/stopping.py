"""What the callback of a budget does to a run of ``pm.sample``: which draws it accepts, how chains end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pymc_dp.errors import PrivacyLeak
from pymc_dp.privacy.binding import TOKEN

__all__ = ["check_own", "make_rectangle", "shorten"]

#: Name of the statistic by which draws of a private step are known.
SIGNATURE = "epsilon_spent"


def check_own(stats: Sequence[Mapping[str, Any]], tokens: set[int]) -> None:
    """Raise unless every step of a draw is private, and on the budget that has these tokens."""
    foreign = [s for s in stats if SIGNATURE not in s]
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


def make_rectangle(traces: Iterable[Any]) -> None:
    """Cut chains to the length of the shortest.

    PyMC keeps the rectangle of most draws and may drop a short chain for it; proposals of different
    length make chains of different length, and all of them are to be kept.
    """
    ours = [trace for trace in traces if _can_shorten(trace)]
    lengths = [trace.draw_idx for trace in ours]
    for trace in ours:
        shorten(trace, by=trace.draw_idx - min(lengths))


def shorten(trace: Any, by: int) -> None:
    """Take back the last draws of a trace."""
    if _can_shorten(trace) and trace.draw_idx >= by:
        trace.draw_idx -= by


def _can_shorten(trace: Any) -> bool:
    """Whether this is PyMC's in-memory trace; of others, release() cuts the idle draws."""
    return isinstance(getattr(trace, "draw_idx", None), int)
