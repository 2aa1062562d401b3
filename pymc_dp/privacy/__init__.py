"""Privacy cost of data accesses: mechanisms, accountants, budgets. NumPy and SciPy only, never PyMC.

The public names compute the cost of a sampler before it runs: a mechanism describes one access,
:func:`epsilon_of`, :func:`delta_of`, :func:`max_draws` and :func:`calibrate` compose many of them.
"""

from pymc_dp.privacy.accounting.calibration import calibrate, delta_of, epsilon_of, max_draws
from pymc_dp.privacy.accounting.filters import Filter, GaussianShare, RenyiShare
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Decision, Gaussian, Mechanism
from pymc_dp.privacy.mechanisms.poisson_minibatch import PoissonMinibatchDecision
from pymc_dp.privacy.mechanisms.stated import PureDP, ZeroConcentratedDP
from pymc_dp.privacy.mechanisms.subsampled import SampledDecision, SampledGaussian, Sampling

__all__ = [
    "Adjacency",
    "Decision",
    "Filter",
    "Gaussian",
    "GaussianShare",
    "L2Laplace",
    "Mechanism",
    "PoissonMinibatchDecision",
    "PureDP",
    "RenyiShare",
    "SampledDecision",
    "SampledGaussian",
    "Sampling",
    "ZeroConcentratedDP",
    "calibrate",
    "delta_of",
    "epsilon_of",
    "least_noise",
    "max_draws",
]
