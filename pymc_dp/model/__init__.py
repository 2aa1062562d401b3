"""Models as functions of records: see :class:`~pymc_dp.model.RecordLikelihood`."""

from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.blocked_likelihood import BlockedLikelihood
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.model.terms import ClippedChange, ClippedScores, ScoreNorms, ScoreProducts, Term

__all__ = [
    "BlockedLikelihood", "ClippedChange", "ClippedScores", "Likelihood", "RecordLikelihood", "ScoreNorms",
    "ScoreProducts", "Term",
]  # fmt: skip
