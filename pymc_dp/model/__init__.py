"""What each record contributes: PyMC models compiled to per-record log-likelihoods."""

from pymc_dp.model.likelihood import RecordLikelihood

__all__ = ["RecordLikelihood"]
