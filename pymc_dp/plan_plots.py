"""What plans weigh against each other, in a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_dp.diagnostics import pyplot
from pymc_dp.surrogate_plans import SurrogatePlan
from pymc_dp.tuning import Plan

__all__ = ["plot_plan"]


def plot_plan(plan: Plan | SurrogatePlan, *, ax: Any = None) -> Any:
    """Plot the choices of a plan: Monte Carlo error against the errors that more draws do not mend.

    These are those of clipping, and of noise that is released once. All are in posterior standard
    deviations; what is expected in all is the distance from the origin.

    Parameters
    ----------
    plan : Plan or SurrogatePlan
    ax : matplotlib.axes.Axes, optional
        By default a new one.

    Returns
    -------
    matplotlib.axes.Axes
        Colours are the parts of the budget that the sum of gradients takes, or the lengths of
        proposals; the choice has a ring.

    Raises
    ------
    ImportError
        If there is no matplotlib.

    Examples
    --------
    >>> from pymc_dp import plot_plan
    >>> plot_plan(plan)  # doctest: +SKIP
    """
    plt = pyplot()
    if isinstance(plan, SurrogatePlan):
        choices: Any = plan.choices
        lasting = [np.hypot(c.noise, c.bias) for c in choices]
        colours, label = [c.part for c in choices], "part of the budget for the sum of gradients"
        error = "noise and clipping"
    else:
        choices = plan.candidates
        lasting = [c.lasting for c in choices]
        colours, label = [c.length for c in choices], "length of proposals"
        error = "other sources"
    scatter = [1 / np.sqrt(max(c.effective_draws, 1e-12)) for c in choices]
    ax = plt.subplots(figsize=(5.5, 4), layout="constrained")[1] if ax is None else ax
    dots = ax.scatter(scatter, lasting, c=colours, s=12, cmap="viridis")
    chosen = choices.index(plan.chosen)
    ax.scatter(scatter[chosen], lasting[chosen], s=90, facecolors="none", edgecolors="C3")
    ax.figure.colorbar(dots, ax=ax, label=label)
    # Far off is far off: what is worth a look is within a few times the best.
    reach = 4 * plan.chosen.error
    for radius in plan.chosen.error * np.array([1, 2, 4]):
        angle = np.linspace(0, np.pi / 2, 100)
        ax.plot(radius * np.cos(angle), radius * np.sin(angle), color="0.8", linewidth=1, zorder=0)
    ax.set(xlim=(0, reach), ylim=(0, reach), aspect="equal")
    ax.set(xlabel="Monte Carlo error of a mean", ylabel=f"its error from {error}")
    return ax
