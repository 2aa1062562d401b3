"""Posterior predictive checks with differential privacy, of posteriors given noisy scores.

:func:`~pymc_dp.private_ppc` releases sums of functions of single records (``statistics_of_records.py``) and compares them with
their predictive law (``predictive_law.py``).
"""

from pymc_dp.checks.check_result import CheckedStatistic, PrivatePPC
from pymc_dp.checks.predictive_check import private_ppc
from pymc_dp.checks.statistics_of_records import GroupMeans

__all__ = ["CheckedStatistic", "GroupMeans", "PrivatePPC", "private_ppc"]
