"""Plans: settings of a private sampler, chosen by their expected error on records drawn from the model."""

from __future__ import annotations

import math

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_dp.display import Shown, Table
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.steps.base import DPStep

#: Smallest expected number of draws per chain: fewer describe no posterior.
MIN_DRAWS = 10
#: Candidates that a printed plan shows.
_N_SHOWN = 8


@dataclass(frozen=True)
class Forecast(Shown):
    """What is expected of settings; errors are in posterior standard deviations.

    Parameters
    ----------
    draws : float
        Of each chain.
    effective_draws : float
        Of all chains together, approximately.
    clipped : float
        Fraction of the records that are clipped.
    bias : float
        Error of a posterior mean caused by clipping.

    Examples
    --------
    >>> forecast = dp.planning.Forecast(500.0, 100.0, clipped=0.01, bias=0.1)
    >>> round(forecast.error, 3)
    0.141
    """

    draws: float
    effective_draws: float
    clipped: float
    bias: float

    @property
    def error(self) -> float:
        """Expected error of a posterior mean, with Monte Carlo error."""
        return math.sqrt(self.bias**2 + 1 / max(self.effective_draws, 1e-12))


@dataclass(frozen=True)
class Candidate(Shown):
    """Settings, and what is expected of them.

    Parameters
    ----------
    settings : dict
        By name, as the plan's table shows them.
    forecast : Forecast
        Draws, clipping and errors with these settings.

    Examples
    --------
    >>> forecast = dp.planning.Forecast(500.0, 100.0, clipped=0.01, bias=0.0)
    >>> dp.planning.Candidate({"clip_bound": 3.0, "scale": 0.02}, forecast).forecast.error
    0.1
    """

    settings: dict[str, Any]
    forecast: Forecast


@dataclass(frozen=True)
class Plan(Shown):
    """Settings for a step whose draws access the data, with the alternatives; print it, or plot it with :func:`~pymc_dp.plots.plot_plan`.

    Parameters
    ----------
    step : type
        Class of the step.
    budget : PrivacyBudget
        Of this plan, and of the run.
    simulator : Simulator
        The model, compiled.
    candidates : tuple of Candidate
        All possible settings, by expected error. Printing shows the best eight.
    chosen : Candidate
        The one whose settings the step gets: with the smallest expected error.
    settings : dict
        Arguments of the step's constructor, by name.
    position : dict of str to array
        Where records were drawn.
    notes : tuple of str
        What the user should know.
    max_draws : int
        Largest number of draws per chain.

    Examples
    --------
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=2000))
    ...     plan = dp.plan(step=dp.DPPenalty, epsilon=2.0, delta=1e-6, random_seed=1)
    >>> step = plan.build()  # dp.sample(plan=plan) does it, too
    >>> type(step).__name__
    'DPPenalty'
    """

    step: type[DPStep]
    budget: PrivacyBudget
    simulator: Simulator = field(repr=False, compare=False)
    candidates: tuple[Candidate, ...] = field(repr=False)
    chosen: Candidate = field(repr=False)
    settings: dict[str, Any]
    position: dict[str, np.ndarray] = field(repr=False, compare=False)
    notes: tuple[str, ...] = field(repr=False)
    max_draws: int = 1000

    def build(self, **options: Any) -> DPStep:
        """Build the step on the plan's budget and compiled model.

        Parameters
        ----------
        **options
            Further arguments of the step, such as ``reproducible``.

        Returns
        -------
        DPStep
            For ``sample(step=...)``.
        """
        simulator = self.simulator
        return self.step(
            budget=self.budget, model=simulator.model, likelihood=simulator.likelihood, public=simulator.public,
            **self.settings, **options,
        )  # fmt: skip

    @property
    def n_records(self) -> int:
        """Public number of records."""
        return self.simulator.n_records

    def __str__(self) -> str:
        """The settings, what is expected of them, and alternatives."""
        return self._table().text()

    def _head(self) -> str:
        budget, expected = self.budget, self.chosen.forecast
        settings = ", ".join(f"{name} = {_shown(x)}" for name, x in self.chosen.settings.items())
        means = f"{expected.bias:.2f} for clipping ({expected.clipped:.2%} of records)"
        return "\n".join(
            [
                f"Plan for epsilon = {budget.epsilon:g} at delta = {budget.delta:g}, {self.n_records} records, {budget.chains} chain(s)",
                "made on records drawn from the model: private data were not looked at",
                "",
                f"{self.step.__name__}: {settings}",
                f"expected:  {expected.draws:.0f} draws in each chain, about {expected.effective_draws:.0f} effective draws in all;",
                f"           means are off by {means}, in posterior standard deviations",
            ]
        )

    def _table(self) -> Table:
        names = [*self.chosen.settings, "clipped", "bias", "draws", "effective", "error"]
        rows = []
        for settings, expected in ((c.settings, c.forecast) for c in self.candidates[:_N_SHOWN]):
            row = [*map(_shown, settings.values()), f"{expected.clipped:.2%}", f"{expected.bias:.2f}"]  # fmt: skip
            row += [f"{expected.draws:.0f}", f"{expected.effective_draws:.0f}", f"{expected.error:.2f}"]  # fmt: skip
            rows.append(row)
        header = [name.replace("_", " ") for name in names]
        return Table(f"{self._head()}\n", rows, header, [f"Note: {note}" for note in self.notes])


def _shown(value: Any) -> str:
    """A setting as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def notes_on_position(position: Any) -> list[str]:
    """Notes of a plan on the position at which its records were drawn."""
    if position is None:
        return [
            "the forecast holds near PyMC's initial point, and elsewhere the posterior may be wider: guess=, public values, moves it."
        ]
    if isinstance(position, str):
        return [
            "records were drawn at one draw from the prior: other values of random_seed= show how much the prior leaves open."
        ]
    return []
