"""Plans for steps with random walk proposals: length of the proposal, clip bound and acceptance rule."""

from __future__ import annotations

import functools
import itertools
import math

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Penalty
from pymc_dp.planning.plan import (
    MIN_DRAWS,
    Candidate,
    Forecast,
    Planned,
    PlanningProblem,
    affordable_draws,
    budget_too_small,
    decision_price,
)
from pymc_dp.planning.simulated_posterior import Moves, SimulatedPosterior
from pymc_dp.privacy.mechanisms.per_proposal import (
    PerProposalCost,
    PerProposalDecision,
    PerProposalPoissonMinibatch,
)
from pymc_dp.steps.barker import DPBarker
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.fast_mh import DPFastMH
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.proposals import RandomWalk

#: Candidates for the clip bound: quantiles of the changes of simulated records.
_QUANTILES = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.9995, 0.9998, 0.9999, 1.0)
#: Largest fraction of clipped records.
_MAX_CLIPPED = 0.1
#: Root mean square lengths of a proposal, in posterior standard deviations.
_LENGTHS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0)
_LAZINESS = (1.0, 0.5, 0.25, 0.125)
#: Noise scale of the penalty rule, or None for Barker's; and laziness.
_Rule = tuple[float | None, float]
_BARKER: tuple[_Rule, ...] = tuple((None, w) for w in _LAZINESS)
_RULES: dict[type[DPStep], tuple[_Rule, ...]] = {
    DPPenalty: tuple((s, w) for s in (1.4, 2.0, 2.5) for w in _LAZINESS),
    DPBarker: _BARKER,
    DPFastMH: _BARKER,
}
#: Draws from the law of a proposal's length, for the price of a typical one.
_N_DISTANCES = 2000
#: Errors up to so many times the least are as good: forecasts are not more accurate.
_EQUAL = 1.05
#: Fewer effective draws than this are reported.
_FEW_EFFECTIVE = 30


def plan_random_walk(step: type[DPStep], problem: PlanningProblem) -> Planned:
    """Settings of :class:`DPPenalty`, :class:`DPBarker` or :class:`DPFastMH`.

    The forecast of the chosen candidate accounts for the varying length of proposals; those of the others do not and
    are too good by a few per cent.
    """
    posterior = SimulatedPosterior(problem.simulator, problem.theta, problem.rng)
    candidates = [
        candidate
        for shape, length in itertools.product(posterior.shapes, _LENGTHS)
        for candidate in _candidates(posterior.moves(shape, length), _RULES[step], problem)
    ]
    if not candidates:
        raise budget_too_small(problem)
    best = _chosen(candidates)
    settings, family = _step_settings(step, best, posterior, problem)
    draws = affordable_draws(
        problem.remaining, problem.price(family), problem.budget.chains, best.forecast.draws
    )
    effective = best.forecast.effective_draws * draws / best.forecast.draws
    chosen = replace(best, forecast=replace(best.forecast, draws=draws, effective_draws=effective))
    notes = list(posterior.notes)
    if effective < _FEW_EFFECTIVE:
        notes.append(
            f"about {effective:.0f} effective draws are few: intervals will be rough. More records, a larger epsilon, fewer "
            "parameters or fewer chains would help."
        )
    return Planned(
        candidates=[chosen if c is best else c for c in candidates],
        chosen=chosen,
        settings=settings,
        summary=_summary(best, settings),
        notes=notes,
        builder=functools.partial(_build, step, problem, settings),
    )


def _chosen(candidates: list[Candidate]) -> Candidate:
    """The candidate that clips fewest records, and so depends least on the model, among those of nearly least error."""
    least = min(candidate.forecast.error for candidate in candidates)
    equal = [c for c in candidates if c.forecast.error <= _EQUAL * least]
    return min(equal, key=lambda c: (c.forecast.clipped, c.forecast.error))


def _build(
    step: type[DPStep], problem: PlanningProblem, settings: dict[str, Any], **options: Any
) -> DPStep:
    simulator = problem.simulator
    return step(
        budget=problem.budget, model=simulator.model, likelihood=simulator.likelihood, public=simulator.public,
        **settings, **options,
    )  # fmt: skip


def _summary(candidate: Candidate, settings: dict[str, Any]) -> str:
    """The settings in words."""
    own = candidate.settings
    numbers = [f"{name} = {x:.4g}" for name, x in settings.items() if isinstance(x, float)]
    return (
        f"random walk of {own['length']:g} posterior standard deviations ({own['covariance']} covariance),\n"
        f"           {', '.join(numbers)}"
    )


def _step_settings(
    step: type[DPStep],
    candidate: Candidate,
    posterior: SimulatedPosterior,
    problem: PlanningProblem,
) -> tuple[dict[str, Any], PerProposalCost]:
    """Arguments of the step, and the cost of its decisions over the law of proposals."""
    own, d = candidate.settings, posterior.n_dim
    simulator, temperature = problem.simulator, problem.simulator.temperature
    covariance = posterior.shapes[own["covariance"]] * own["length"] ** 2 / d
    settings: dict[str, Any] = {
        "proposal": RandomWalk(covariance, metric="proposal"),
        "clip_bound": own["clip_bound"],
        "laziness": own["laziness"],
        "temperature": temperature,
    }
    z = np.random.default_rng(0).standard_normal((_N_DISTANCES, d))
    distances = tuple(np.linalg.norm(z, axis=1).tolist())
    per_distance = temperature * own["clip_bound"]
    if step is DPFastMH:
        settings["batch_rate"] = max(1.0, simulator.n_records * per_distance * math.sqrt(d))
        rule = _rule(None, own["laziness"])
        return settings, PerProposalPoissonMinibatch(
            per_distance, rule, settings["batch_rate"], simulator.n_records, None, distances
        )
    if step is DPPenalty:
        settings["noise_scale"] = own["noise_scale"]
    sensitivity = problem.budget.adjacency.sensitivity_factor * per_distance
    rule = _rule(own["noise_scale"], 1)
    return settings, PerProposalDecision(sensitivity, rule, None, own["laziness"], distances)


def _rule(noise_scale: float | None, laziness: float) -> AcceptanceRule:
    """Barker's rule, or the penalty rule with this noise scale; lazy if ``laziness`` is below 1."""
    rule: AcceptanceRule = Barker() if noise_scale is None else Penalty(noise_scale)
    return rule if laziness == 1 else Lazy(rule, laziness)


def _candidates(
    moves: Moves, choices: tuple[_Rule, ...], problem: PlanningProblem
) -> Iterator[Candidate]:
    """For proposals of one length, the best rule at each clip bound that allows enough draws."""
    rules = {choice: _rule(*choice) for choice in choices}
    acceptance = {
        choice: float(np.mean([rule.probability(x) for x in moves.ratios]))
        for choice, rule in rules.items()
    }
    for quantile in _QUANTILES:
        bound, clipped, bias = moves.clipping(quantile)
        if clipped > _MAX_CLIPPED:
            continue
        found = []
        for choice, rule in rules.items():
            draws = _draws(rule, bound, moves, problem)
            forecast = Forecast(
                draws=draws,
                effective_draws=problem.budget.chains * draws * _ess_per_draw(acceptance[choice], moves),
                clipped=clipped,
                bias=bias,
            )  # fmt: skip
            settings = {
                "covariance": moves.shape, "length": moves.length, "clip_bound": bound,
                "noise_scale": choice[0], "laziness": choice[1],
            }  # fmt: skip
            found.append(Candidate(settings, forecast))
        best = min(found, key=lambda candidate: candidate.forecast.error)
        if best.forecast.draws >= MIN_DRAWS and best.forecast.effective_draws > 0:
            yield best


def _draws(rule: AcceptanceRule, bound: float, moves: Moves, problem: PlanningProblem) -> float:
    """Draws per chain; 0 where the clip bound is 0, as most records do not change."""
    if not bound:
        return 0.0
    factor = problem.budget.adjacency.sensitivity_factor
    size = math.sqrt(np.mean(moves.sizes**2))
    sensitivity = factor * problem.simulator.temperature * bound * size
    price = decision_price(problem.budget, rule, sensitivity)
    return affordable_draws(problem.remaining, price, problem.budget.chains, problem.max_draws)


def _ess_per_draw(acceptance: float, moves: Moves) -> float:
    """Effective draws per draw in the slowest direction, for successive draws as an AR(1) process."""
    decay = min(1.0, acceptance * moves.slowest / 2)
    return decay / (2 - decay)
