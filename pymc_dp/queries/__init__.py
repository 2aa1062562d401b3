"""Sums and counts of functions of records, released with noise; made-up covariates from such releases."""

from pymc_dp.queries.noisy_total import Release
from pymc_dp.queries.private_sum import PrivateCounts, PrivateSum, private_counts, private_sum
from pymc_dp.queries.ranges import Ranges
from pymc_dp.queries.stand_in import StandIn, private_stand_in

__all__ = [
    "PrivateCounts",
    "PrivateSum",
    "Ranges",
    "Release",
    "StandIn",
    "private_counts",
    "private_stand_in",
    "private_sum",
]
