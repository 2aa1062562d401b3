"""Noisy scores: release a few noisy sums of clipped gradients, then sample the posterior given them.

:func:`~pymc_dp.private_scores` makes the releases (``score_plan.py``), planned by ``design.py`` on simulated
records; first sums find the reference of the main one (``search.py``), also of a :func:`private_start`;
``releases.py`` has the public result. :class:`~pymc_dp.DPScore` samples: ``feature_law.py`` has the
mean and covariance of a record's clipped scores at any parameters, ``sum_law.py`` the density that they give the sums,
and ``nuts.py`` moves the parameters. :func:`~pymc_dp.scores.check_fit`
compares a noisy histogram of score norms with the model (``fit_check.py``, planned by ``check_design.py``).
With private covariates, released second moments correct those of the stand-in (``second_moments.py``).
"""

from pymc_dp.scores.fit_check import FitCheck, check_fit
from pymc_dp.scores.private_scores import private_scores
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_plan import ScorePlan
from pymc_dp.scores.score_step import DPScore
from pymc_dp.scores.start import PrivateStart, private_start

__all__ = [
    "DPScore",
    "FitCheck",
    "PrivateScores",
    "PrivateStart",
    "ScorePlan",
    "check_fit",
    "private_scores",
    "private_start",
]
