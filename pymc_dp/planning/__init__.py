"""Settings chosen on simulated records, without access to the data; and private starts.

:class:`~pymc_dp.Simulator` compiles a model and draws records from it. :func:`~pymc_dp.plan` compares
the settings of a step on such records, and returns a :class:`~pymc_dp.Plan`: one :class:`Candidate` for
each setting, with its :class:`Forecast`. :func:`private_start` spends part of a budget on noisy Newton
steps, and returns a :class:`PrivateStart` in the bulk of the posterior.
"""

from pymc_dp.planning.plan import Candidate, Forecast, Plan
from pymc_dp.planning.simulator import Simulator
from pymc_dp.planning.start import PrivateStart, private_start

__all__ = ["Candidate", "Forecast", "Plan", "PrivateStart", "Simulator", "private_start"]
