"""The forecasts of a plan's candidates, in one plot."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_dp.planning.plan import Plan

__all__ = ["plot_plan"]

#: The axes show errors up to this multiple of the smallest one.
_REACH = 4


def plot_plan(plan: Plan, *, ax: Any = None) -> Any:
    """Plot the candidates of a plan: Monte Carlo error against the bias by clipping.

    Both are in posterior standard deviations; the expected error of a posterior mean is the distance from the
    origin. (A :class:`~pymc_dp.scores.ScorePlan` has no candidates: print it.)

    Parameters
    ----------
    plan : Plan
    ax : matplotlib.axes.Axes, optional
        By default new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Colours are numbers of draws per chain; a ring marks the chosen candidate.

    Raises
    ------
    ImportError
        If matplotlib is missing.

    Examples
    --------
    >>> from pymc_dp.plots import plot_plan
    >>> plot_plan(plan)  # doctest: +SKIP
    """
    plt = _pyplot()
    forecasts = [candidate.forecast for candidate in plan.candidates]
    monte_carlo = [1 / np.sqrt(max(f.effective_draws, 1e-12)) for f in forecasts]
    bias = [f.bias for f in forecasts]
    if ax is None:
        _, ax = plt.subplots(figsize=(5.5, 4), layout="constrained")
    dots = ax.scatter(monte_carlo, bias, c=[f.draws for f in forecasts], s=12, cmap="viridis")
    chosen = plan.candidates.index(plan.chosen)
    ring = {"s": 90, "facecolors": "none", "edgecolors": "C3"}
    ax.scatter(monte_carlo[chosen], bias[chosen], **ring)
    ax.figure.colorbar(dots, ax=ax, label="draws in each chain")
    error = plan.chosen.forecast.error
    angle = np.linspace(0, np.pi / 2, 100)
    for radius in error * np.array([1, 2, 4]):
        ax.plot(radius * np.cos(angle), radius * np.sin(angle), color="0.8", linewidth=1, zorder=0)
    ax.set(xlim=(0, _REACH * error), ylim=(0, _REACH * error), aspect="equal")
    ax.set(xlabel="Monte Carlo error of a mean", ylabel="its error from clipping")
    return ax


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(
            "Plots need matplotlib: install it, or pymc-dp with its extra 'plots'."
        ) from None
    return plt
