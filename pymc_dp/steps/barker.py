"""DP Barker: an acceptance test that is private without added noise, on all records or on batches."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from pymc_dp.acceptance import Barker
from pymc_dp.steps.accept_reject import BatchStep
from pymc_dp.steps.corrected_barker import CorrectedBarker, slopes
from pymc_dp.steps.options import BatchOptions


class DPBarker(BatchStep):
    r"""Barker's acceptance test, private with no noise: exact on all records (without clipping).

    Each iteration proposes ``theta'``, computes the clipped and tempered log-ratio

    .. math:: \lambda = T \sum_i \operatorname{clip}(\ell_i(\theta') - \ell_i(\theta), \pm b M(\theta, \theta'))
              + \log p(\theta') - \log p(\theta)

    and accepts with probability ``1 / (1 + exp(-lambda))``.

    **Privacy.** The log-odds of the decision *are* ``lambda``, and one record changes ``lambda`` by at
    most ``2 T b M`` (substitution; ``T b M`` for add/remove). Proposals do not depend on the data.

    **Invariance.** As for :class:`~pymc_dp.DPPenalty`, since ``a(lambda) = exp(lambda) a(-lambda)``: the
    chain has exactly the posterior (tempered by ``T``) if no record is clipped.

    **Batches.** With ``batch_size`` an iteration reads ``m`` records only, and ``lambda`` is estimated
    with an error of estimated variance ``v`` (:class:`~pymc_dp.steps.accept_reject.BatchStep` has both
    formulas and their sensitivities). The decision is that of

    .. math:: \hat\lambda + N(0, C - v) + V_{corr} > 0

    where ``N(0, C) + V_corr`` is nearly logistic. Its probability is known in closed form
    (:class:`~pymc_dp.steps.corrected_barker.CorrectedBarker`), so that none of the three is drawn.
    **Approximate**: the error of the batch is taken to be normal with variance ``v``. (The
    distribution function of ``N(0, C) + V_corr`` is within 1.0e-6 of the logistic one for ``C = 1``,
    within 7.61e-4 for ``C = 2``; that of the literature within 2.4e-3.) For symmetric contributions of
    the records the bias is below 0.005 posterior standard deviations; skewed ones shift the mean,
    exponential ones in batches of 200 of 2000 by 0.02 at ``v = 0.1`` (a table is in the page on
    guarantees). Since ``v`` must not exceed 1, every ``|r_i|`` must be clipped below ``sqrt(m) / (N
    T)``: the proposal needs a ``max_distance`` with ``b * max_distance * N * T <= sqrt(m)``. Seven
    tenths of that are better: where ``v`` can come near 1 a record moves the log-odds 1.7 times as far
    as the estimate, where it stays below 1/2 only 1.2 times.

    :func:`~pymc_dp.steps.corrected_barker.slopes` bounds how far the log-odds move with the estimate
    and with ``v``. The charge is that of a Barker decision with the resulting sensitivity, which sees
    the record with probability ``m / N``. Substitution only.

    Parameters
    ----------
    noise_variance : {1.0, 2.0}
        ``C``, with batches only. The default is more accurate; 2 is the value of the papers, whose
        accounting needs ``C - v >= 1``.
    **options
        See :class:`~pymc_dp.steps.accept_reject.BatchStep`.

    Raises
    ------
    ValueError
        If an argument is out of its range, if the variance on a batch could exceed 1, or a batch is
        asked for with a budget for adjacency ``"add_remove"``, for which its cost is not proved.

    References
    ----------
    Heikkilä, Jälkö, Dikmen, Honkela (2019), Differentially private Markov chain Monte Carlo,
    https://arxiv.org/abs/1901.10275. Seita, Pan, Chen, Canny (2017), An efficient minibatch
    acceptance test for Metropolis-Hastings, https://arxiv.org/abs/1610.06848.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(size=5000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     step = dp.DPBarker(
    ...         budget=budget, clip_bound=2.0, proposal=dp.RandomWalk(0.02), laziness=0.5
    ...     )
    >>> budget.expected_draws() > 100
    True
    """

    name = "dp_barker"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        noise_variance: float = 1.0,
        **options: Unpack[BatchOptions],
    ):
        CorrectedBarker(noise_variance)  # raises ValueError for other variances than 1 and 2
        super().__init__(vars, **options)
        self.noise_variance = float(noise_variance)
        self.rule = self.lazy(Barker())
        bounds = 1.0, 0.0
        if self.batch_size is not None:
            bounds = slopes(self.noise_variance, self._largest_variance())
        self.family = self._batch_decisions(Barker(), None, bounds)
        self.register()

    def _largest_variance(self) -> float:
        """Bound the batch variance, at most 1, or refuse: ``v <= k**2 sum r**2 <= (N T b M)**2 / m``."""
        size = self._batch()
        reach = self.likelihood.n_records * self.temperature * self.clip_bound
        root, cap = math.sqrt(size), getattr(self.proposal, "max_distance", None)
        if cap is None or reach * cap > root * (1 + 1e-12):
            raise ValueError(
                f"The variance on a batch of {size} could exceed 1: N * temperature * clip_bound * max_distance must be at most "
                f"sqrt(batch_size) = {root:.6g}, but it is {self.likelihood.n_records} * {self.temperature:g} * {self.clip_bound:g} * "
                f"{'(no max_distance given)' if cap is None else f'{cap:g}'}. Give the proposal a max_distance of at most "
                f"{root / reach:.6g}, or use larger batches, a smaller clip_bound or temperature, or all records."
            )
        return min(1.0, (reach * cap) ** 2 / size)

    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """Propose, charge, decide."""
        move = self.propose(theta)  # public: blind to the data
        rule = self.charge_decision(move).rule  # paid before any record is read
        if self.batch_size is None:
            log_ratio = self.log_ratio(move)
        else:
            log_ratio, variance = self.estimated_log_ratio(move)
            rule = self.lazy(CorrectedBarker(self.noise_variance, variance))
        return self.choose(move, rule, log_ratio)  # one secret Bernoulli draw
