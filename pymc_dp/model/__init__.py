"""What each record contributes: PyMC models compiled to per-record log-likelihoods."""

from pymc_dp.model.blocked_likelihood import BlockedLikelihood
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.model.reductions import Reductions

__all__ = ["BlockedLikelihood", "RecordLikelihood", "Reductions"]
