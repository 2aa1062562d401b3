"""The public names of the package, as attributes of :mod:`pymc_dp`, which imports this module when the first is used."""

from pymc_dp import (  # noqa: F401 - attributes of the package
    checks,
    comparison,
    data,
    errors,
    model,
    planning,
    plots,
    privacy,
    privatized,
    queries,
    scores,
    sites,
    steps,
)
from pymc_dp.acceptance import Barker, Penalty
from pymc_dp.checks.predictive_check import private_ppc
from pymc_dp.comparison.private_compare import private_compare
from pymc_dp.data import Records, Shards
from pymc_dp.errors import PrivacyBudgetExhausted, PrivacyLeakWarning, UnsupportedModel
from pymc_dp.planning.plan import Plan
from pymc_dp.planning.simulator import Simulator
from pymc_dp.plans import plan
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privatized.augmentation import PrivatizedRecords
from pymc_dp.privatized.distributions import DiscreteGaussian, DiscreteLaplace, RandomizedResponse
from pymc_dp.publishing import release
from pymc_dp.queries.private_sum import private_counts, private_sum
from pymc_dp.queries.ranges import Ranges
from pymc_dp.queries.stand_in import private_stand_in
from pymc_dp.sampling import sample
from pymc_dp.scores.private_scores import private_scores
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_step import DPScore
from pymc_dp.steps.barker import DPBarker
from pymc_dp.steps.fast_mh import DPFastMH
from pymc_dp.steps.hmc import DPHMC
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.proposals import GuidedWalk, OneComponent, RandomWalk
from pymc_dp.steps.sghmc import DPSGHMC

__all__ = [
    "DPHMC",
    "DPSGHMC",
    "Barker",
    "DPBarker",
    "DPFastMH",
    "DPPenalty",
    "DPScore",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "GuidedWalk",
    "Ledger",
    "OneComponent",
    "Penalty",
    "Plan",
    "PrivacyBudget",
    "PrivacyBudgetExhausted",
    "PrivacyLeakWarning",
    "PrivacyReport",
    "PrivateScores",
    "PrivatizedRecords",
    "RandomWalk",
    "RandomizedResponse",
    "Ranges",
    "Records",
    "Shards",
    "Simulator",
    "UnsupportedModel",
    "plan",
    "private_compare",
    "private_counts",
    "private_ppc",
    "private_scores",
    "private_stand_in",
    "private_sum",
    "release",
    "sample",
]
