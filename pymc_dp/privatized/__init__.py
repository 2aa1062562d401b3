"""Posteriors given data that were released with noise added: nothing here is charged to a budget.

:class:`~pymc_dp.PrivatizedRecords` samples the unknown records behind a release. The noise is declared with
:class:`~pymc_dp.DiscreteLaplace`, :class:`~pymc_dp.DiscreteGaussian`, :class:`~pymc_dp.RandomizedResponse` or PyMC's
distributions. The functions here return the sensitivity by which such noise is scaled.
"""

from pymc_dp.privatized.sensitivity import sensitivity_of_moments, sensitivity_of_table

__all__ = ["sensitivity_of_moments", "sensitivity_of_table"]
