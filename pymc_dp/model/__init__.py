"""What each record contributes: PyMC models compiled to per-record log-likelihoods."""

from pymc_dp.model.checks import data_roots, depends_on_data
from pymc_dp.model.records import RecordLikelihood

__all__ = ["RecordLikelihood", "data_roots", "depends_on_data"]
