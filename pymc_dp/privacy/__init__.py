"""What a data access costs: mechanisms, accountants, budgets. NumPy and SciPy only, never PyMC.

The public names are those a reader needs to cost a sampler before running it: mechanisms say what
one access reveals, :func:`epsilon_of`, :func:`delta_of`, :func:`max_draws` and :func:`calibrate`
compose them.
"""

from pymc_dp.privacy.accounting import calibrate, delta_of, epsilon_of, max_draws
from pymc_dp.privacy.filters import (
    GaussianFilter,
    GaussianShare,
    RenyiFilter,
    RenyiOdometer,
    RenyiShare,
)
from pymc_dp.privacy.mechanisms import Adjacency as Adjacency  # documented at the top
from pymc_dp.privacy.mechanisms import Decision, Gaussian, Mechanism
from pymc_dp.privacy.minibatch import PoissonMinibatchDecision
from pymc_dp.privacy.published import BarkerRelease, MinibatchRelease
from pymc_dp.privacy.sampled import SampledDecision, SampledGaussian, Sampling
from pymc_dp.privacy.sensitivity import Sensitivity as Sensitivity  # documented at the top
from pymc_dp.privacy.sensitivity import quadratic_exponents as quadratic_exponents
from pymc_dp.privacy.sensitivity import sensitivity_of as sensitivity_of
from pymc_dp.privacy.sensitivity import sensitivity_of_table as sensitivity_of_table

__all__ = [
    "BarkerRelease",
    "Decision",
    "Gaussian",
    "GaussianFilter",
    "GaussianShare",
    "Mechanism",
    "MinibatchRelease",
    "PoissonMinibatchDecision",
    "RenyiFilter",
    "RenyiOdometer",
    "RenyiShare",
    "SampledDecision",
    "SampledGaussian",
    "Sampling",
    "calibrate",
    "delta_of",
    "epsilon_of",
    "max_draws",
]
