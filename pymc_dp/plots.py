"""The forecasts of a plan's candidates, and the statistics of a posterior predictive check."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_dp.checks.check_result import PrivatePPC
from pymc_dp.planning.plan import Plan

__all__ = ["plot_plan", "plot_ppc"]

#: The axes show errors up to this multiple of the smallest one.
_REACH = 4


def plot_plan(plan: Plan, *, ax: Any = None) -> Any:
    """Plot the candidates of a plan: Monte Carlo error against the bias by clipping.

    Both are in posterior standard deviations; the expected error of a posterior mean is the distance from the
    origin. (A :class:`~pymc_dp.scores.ScorePlan` has no candidates: print it.)

    Parameters
    ----------
    plan : Plan
        Made by ``dp.plan(step=...)`` for a sampler that pays for each draw.
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
    >>> dp.plots.plot_plan(plan)  # doctest: +SKIP
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plot_plan() plots a Plan, as plan(step=DPPenalty, ...) returns it, got a {type(plan).__name__}: print the plan of noisy scores."
        )
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


def plot_ppc(ppc: PrivatePPC, *, axes: Any = None) -> Any:
    """Plot the released statistics of a check against the intervals that the model predicts.

    Parameters
    ----------
    ppc : PrivatePPC
        What :func:`~pymc_dp.private_ppc` has returned.
    axes : sequence of matplotlib.axes.Axes, optional
        One for each statistic; by default new ones.

    Returns
    -------
    array of matplotlib.axes.Axes
        Dark bars are 90 % of the replicates without the released noise (with the same centre, and a width from the
        difference of variances), light bars with it; dots are the released values, red if they are outside.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    ValueError
        If there are fewer axes than statistics.

    Examples
    --------
    >>> dp.plots.plot_ppc(ppc)  # doctest: +SKIP
    """
    if not isinstance(ppc, PrivatePPC):
        raise TypeError(f"plot_ppc() plots what private_ppc() returns, got a {type(ppc).__name__}.")
    plt, n = _pyplot(), len(ppc.statistics)
    if axes is None:
        _, axes = plt.subplots(1, n, figsize=(1.5 + 3 * n, 3.2), layout="constrained")
    axes = np.ravel(axes)
    if len(axes) < n:
        raise ValueError(f"axes must be {n}, one for each statistic, got {len(axes)}.")
    for ax, s in zip(axes, ppc.statistics, strict=False):
        middle, (low, high) = np.median(s.replicates, axis=0), s.interval()
        total = s.replicates.var(axis=0)
        part = np.sqrt(np.clip(1 - s.noise_sd**2 / np.where(total > 0, total, 1.0), 0.0, 1.0))
        places = np.arange(len(s.value))
        # Of counts that differ widely in size, differences from what is expected are readable.
        centre = middle if len(s.value) > 1 else np.zeros_like(middle)
        ax.vlines(
            places,
            low - centre,
            high - centre,
            color="0.85",
            linewidth=9,
            label="model and noise, 90 %",
        )
        dark = [middle + part * (end - middle) - centre for end in (low, high)]
        ax.vlines(places, *dark, color="0.55", linewidth=9, label="of it the model")
        outside = (s.value < low) | (s.value > high)
        ax.scatter(places, s.value - centre, c=np.where(outside, "C3", "C0"), zorder=3, s=24, label="released")  # fmt: skip
        ax.set_xticks(places, s.labels if len(places) > 1 else [""], rotation=60 if len(places) > 1 else 0, fontsize=7)  # fmt: skip
        ax.margins(x=0.5 if len(places) == 1 else 0.08)
        ax.set(
            title=f"{s.name} (p = {s.p_value:.2g})",
            ylabel="minus its median" if len(places) > 1 else "",
        )
    axes[0].legend(fontsize=7)
    return axes[:n]


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(
            "Plots need matplotlib: install it, or pymc-dp with its extra 'plots'."
        ) from None
    return plt
