"""Differentially private Bayesian inference by MCMC, for any PyMC model.

Public names only; mechanisms, accountants and the ledger's internals live in
:mod:`pymc_dp.privacy`. Names are loaded on first use, so that the ledger's command line does not
wait for PyMC.
"""

from __future__ import annotations

import importlib

from typing import TYPE_CHECKING, Any

from pymc_dp.release import release

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from pymc_dp.acceptance import Barker, Lazy, Metropolis, Penalty
    from pymc_dp.diagnostics import mmd, plot_epsilon, plot_posterior
    from pymc_dp.distributions import DiscreteGaussian, DiscreteLaplace, RandomizedResponse
    from pymc_dp.errors import (
        LedgerError,
        ModelError,
        PerformanceWarning,
        PrivacyBudgetExhausted,
        PrivacyLeak,
        PrivacyLeakWarning,
        PymcDPError,
        StartNotFound,
        UnsupportedModel,
        WeakGuaranteeWarning,
    )
    from pymc_dp.model.records import RecordLikelihood
    from pymc_dp.plan_plots import plot_plan
    from pymc_dp.privacy.budget import PrivacyBudget
    from pymc_dp.privacy.ledger import Ledger
    from pymc_dp.privacy.mechanisms import Adjacency
    from pymc_dp.privacy.report import PrivacyReport
    from pymc_dp.privacy.sensitivity import (
        Sensitivity,
        quadratic_exponents,
        sensitivity_of,
        sensitivity_of_table,
    )
    from pymc_dp.sampling import sample
    from pymc_dp.starting import PrivateStart, private_start
    from pymc_dp.steps.augmentation import PrivatizedRecords
    from pymc_dp.steps.barker import DPBarker
    from pymc_dp.steps.control_variate import DPControlVariate
    from pymc_dp.steps.fast_mh import DPFastMH, TunaMH
    from pymc_dp.steps.hmc import DPHMC
    from pymc_dp.steps.penalty import DPPenalty
    from pymc_dp.steps.proposals import GuidedWalk, OneComponent, RandomWalk
    from pymc_dp.steps.sghmc import DPSGHMC
    from pymc_dp.steps.surrogate import Surrogate
    from pymc_dp.surrogate_plans import SurrogateChoice, SurrogatePlan, plan_surrogate
    from pymc_dp.surrogates import private_surrogate
    from pymc_dp.tuning import Plan, plan

_HOME = {
    "Adjacency": "privacy.mechanisms",
    "Barker": "acceptance",
    "DPBarker": "steps.barker",
    "DPControlVariate": "steps.control_variate",
    "DPFastMH": "steps.fast_mh",
    "DPHMC": "steps.hmc",
    "DPPenalty": "steps.penalty",
    "DPSGHMC": "steps.sghmc",
    "DiscreteGaussian": "distributions",
    "DiscreteLaplace": "distributions",
    "GuidedWalk": "steps.proposals",
    "Lazy": "acceptance",
    "Ledger": "privacy.ledger",
    "LedgerError": "errors",
    "Metropolis": "acceptance",
    "ModelError": "errors",
    "OneComponent": "steps.proposals",
    "Penalty": "acceptance",
    "PerformanceWarning": "errors",
    "Plan": "tuning",
    "PrivacyBudget": "privacy.budget",
    "PrivacyBudgetExhausted": "errors",
    "PrivacyLeak": "errors",
    "PrivacyLeakWarning": "errors",
    "PrivacyReport": "privacy.report",
    "PrivateStart": "starting",
    "PrivatizedRecords": "steps.augmentation",
    "PymcDPError": "errors",
    "RandomWalk": "steps.proposals",
    "RandomizedResponse": "distributions",
    "RecordLikelihood": "model.records",
    "Sensitivity": "privacy.sensitivity",
    "StartNotFound": "errors",
    "Surrogate": "steps.surrogate",
    "SurrogateChoice": "surrogate_plans",
    "SurrogatePlan": "surrogate_plans",
    "TunaMH": "steps.fast_mh",
    "UnsupportedModel": "errors",
    "WeakGuaranteeWarning": "errors",
    "mmd": "diagnostics",
    "plan": "tuning",
    "plan_surrogate": "surrogate_plans",
    "plot_epsilon": "diagnostics",
    "plot_plan": "plan_plots",
    "plot_posterior": "diagnostics",
    "private_start": "starting",
    "private_surrogate": "surrogates",
    "quadratic_exponents": "privacy.sensitivity",
    "sample": "sampling",
    "sensitivity_of": "privacy.sensitivity",
    "sensitivity_of_table": "privacy.sensitivity",
}

__all__ = [*_HOME, "release"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
