"""Comparison of models by how well they predict private records, released with noise."""

from pymc_dp.comparison.comparison_result import PrivateComparison, PrivateComparisons
from pymc_dp.comparison.difference_clipping import ClipForecast
from pymc_dp.comparison.private_compare import private_compare

__all__ = ["ClipForecast", "PrivateComparison", "PrivateComparisons", "private_compare"]
