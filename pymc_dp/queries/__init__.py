"""Sums and counts of functions of records, released with noise."""

from pymc_dp.queries.private_sum import PrivateCounts, PrivateSum, private_counts, private_sum

__all__ = ["PrivateCounts", "PrivateSum", "private_counts", "private_sum"]
