"""Settings chosen on simulated records, without access to the data.

:class:`~pymc_dp.Simulator` compiles a model and draws records from it. :func:`~pymc_dp.plan` compares
the settings of a step on such records, and returns a :class:`~pymc_dp.Plan`: one :class:`Candidate` for
each setting, with its :class:`Forecast`.
"""

from pymc_dp.planning.plan import Candidate, Forecast, Plan
from pymc_dp.planning.simulator import Simulator

__all__ = ["Candidate", "Forecast", "Plan", "Simulator"]
