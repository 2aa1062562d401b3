"""Draws of the posterior given noisy scores, reduced to what may be published."""

from __future__ import annotations

import math
import warnings

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pymc_dp.codec import dumps
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.publishing import reduced
from pymc_dp.scores.fit_check import FitCheck
from pymc_dp.scores.score_step import DPScore

_PUBLIC = "The covariates of the model are public: the posterior uses them."
_STAND_IN = "The stand-in's covariates are public, and distributed as those of the records: simulated records have them."
_CORRECTED = "The stand-in's covariates are public, and distributed as those of the records once they are weighted to have the released moments."
_RANGES = "The covariates are distributed as the stand-in that was made from their ranges and noisy counts."
#: Median distance of a chain's draws from the normal approximation above which it is reported.
_FAR = 4.0


def released_draws(idata: Any, step: DPScore, fit: FitCheck | None) -> Any:
    """Reduce the result of ``pm.sample`` for this step alone; scores and fit check become attributes of it.

    The draws and statistics are functions of the scores, so all of them may be published. PyMC adds what shows the data
    of the model: observed values, and Deterministics of these.
    """
    simulator, scores = step.simulator, step.scores
    report = joint_report(scores.reports)
    if simulator.covariates is not None:
        report = replace(report, assumptions=(*report.assumptions, _assumed(step)))
    if assumed := simulator.likelihood.assumed:
        report = replace(report, assumptions=(*report.assumptions, assumed))
    released = reduced(
        idata,
        simulator.model,
        report,
        {simulator.likelihood.n_records},
        stats=step.stats_dtypes_shapes,
        public=simulator.public,
    )
    released.attrs["private_scores"] = dumps(scores)
    if fit is not None:
        released.attrs |= {"fit_check": str(fit), "fit_check_p": fit.p_value}
    return released


def _assumed(step: DPScore) -> str:
    """Source of the covariates of simulated records, in words."""
    simulator, scores = step.simulator, step.scores
    is_own = isinstance(simulator.covariates, str)
    own = {v.name: v.get_value() for v in simulator.model.data_vars}
    if scores.stand_in is not None and (not is_own or scores.stand_in.has_rows(own)):
        return _RANGES
    if is_own:
        return _PUBLIC
    return _STAND_IN if scores.moments is None else _CORRECTED


def warn_of_distance(released: Any) -> None:
    """Warn if a chain is far from the posterior that the scores imply; both are public."""
    distances = released.sample_stats["reference_distance"].median("draw")
    if (largest := float(distances.max())) > _FAR:
        warnings.warn(
            f"The draws of chain {int(distances.argmax())} are {largest:.1f} standard deviations from the mode of the posterior that the scores "
            "give. Either the chain is lost (compare it with the others), or the posterior is far from normal, as where the scores tell little "
            "more than a direction because their reference is far away: give a guess= that is nearer, from public knowledge.",
            stacklevel=4,
        )


def joint_report(reports: Sequence[PrivacyReport]) -> PrivacyReport:
    """Report of several budgets on the same data together, by basic composition."""
    *before, last = reports
    if not before:
        return last
    epsilon, delta = sum(r.epsilon for r in reports), sum(r.delta for r in reports)
    protected = all(r.protected for r in reports) and epsilon < math.inf
    rates = {"0.1%": 0.001, "1%": 0.01}
    power = {
        name: min(
            1.0,
            math.exp(min(epsilon, 700.0)) * rate + delta,
            1 - math.exp(-epsilon) * (1 - rate - delta),
        )
        for name, rate in rates.items()
    }
    return replace(
        last,
        protected=protected,
        epsilon_budget=sum(r.epsilon_budget for r in reports),
        epsilon=epsilon,
        delta=delta,
        gaussian_mu=None,
        zcdp_rho=None,
        attack_power=power if protected else dict.fromkeys(rates, 1.0),
        public_covariates=any(r.public_covariates for r in reports),
        secret_randomness=all(r.secret_randomness for r in reports),
        one_off_accesses={
            f"{label} (budget {k})": accesses
            for k, r in enumerate(reports, 1)
            for label, accesses in r.one_off_accesses.items()
        },
        claimed=None,  # each report has its own
    )
