"""DP Barker: an acceptance test that is private without added noise, on all records or on batches."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy
from pymc_dp.correction import CorrectedBarker, slopes
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import DecisionFamily
from pymc_dp.steps.accept_reject import AcceptRejectStep, Move
from pymc_dp.steps.proposals import Proposal

__all__ = ["DPBarker"]


class DPBarker(AcceptRejectStep):
    r"""Barker's acceptance test, private with no noise: exact on all records (without clipping).

    Each iteration proposes ``theta'``, computes the clipped and tempered log-ratio

    .. math:: \lambda = T \sum_i \operatorname{clip}(\ell_i(\theta') - \ell_i(\theta), \pm b M(\theta, \theta'))
              + \log p(\theta') - \log p(\theta)

    and accepts with probability ``1 / (1 + exp(-lambda))``. Its log-odds *are* ``lambda``, which one
    record moves by at most ``2 T b M`` (substitution; half of it for add/remove), and nothing more
    is needed. The chain has exactly the posterior (tempered by ``T``) if no record is clipped; of
    clipped chains see :class:`~pymc_dp.DPPenalty`.

    With ``batch_size`` each iteration looks at ``m`` records only, drawn without replacement, and
    ``lambda`` is estimated by ``N T / m`` times their sum, with an error of estimated variance
    ``v``. The decision is that of

    .. math:: \hat\lambda + N(0, C - v) + V_{corr} > 0

    where ``N(0, C) + V_corr`` is all but logistic; its probability is known in closed form
    (:class:`~pymc_dp.correction.CorrectedBarker`), so that none of the three is drawn.
    **Approximate**: the error of the batch is taken to be normal with variance ``v``. (The distribution
    function of ``N(0, C) + V_corr`` itself is within 1.0e-6 of the logistic one for ``C = 1``, within
    7.61e-4 for ``C = 2``; that of the literature within 2.4e-3.) For symmetric contributions of the
    records the bias is below 0.005 posterior standard deviations; skewed ones shift the mean,
    exponential ones in batches of 200 of 2000 by 0.02 at ``v = 0.1`` (a table is in the page on
    guarantees). Since ``v`` must not exceed 1, clipping must keep
    every ``|r_i|`` below ``sqrt(m) / (N T)``: the step asks for a proposal with a ``max_distance``
    such that ``b * max_distance * N * T <= sqrt(m)``, and refuses others. Seven tenths of that are
    better: where ``v`` can come near 1 a record moves the log-odds 1.7 times as far as the estimate,
    where it stays below 1/2 only 1.2 times.

    A record of the batch changes the estimate by at most ``2 k b M`` and ``v`` by at most ``4 (k b
    M)**2 (N - m) / (N - 1) (m - 1) / m``, ``k = N T / m``; :func:`~pymc_dp.correction.slopes` bounds
    what that does to the log-odds, and what is charged is a Barker decision of that sensitivity
    which sees the record with probability ``m / N``. Substitution only.

    Parameters
    ----------
    vars : list of variables, optional
        Variables to update, all by default.
    budget : PrivacyBudget or None
        What may be spent. None, which must be said, runs without privacy.
    clip_bound : float
        ``b``: most that one record's log-likelihood may change per unit of the proposal's distance.
        No default, see :class:`~pymc_dp.DPPenalty`. ``math.inf`` only without a budget and on all
        records.
    proposal : Proposal
        :class:`~pymc_dp.RandomWalk`, :class:`~pymc_dp.OneComponent` or :class:`~pymc_dp.GuidedWalk`;
        with ``max_distance`` if there are batches.
    laziness : float
        Weight ``w`` in (0, 1] of the lazy rule.
    temperature : float
        ``T`` in (0, 1], public. 1 targets the posterior.
    batch_size : int, optional
        Records per iteration ``m``, from 2 on, drawn without replacement with secret randomness;
        all by default.
    noise_variance : {1.0, 2.0}
        ``C``, with batches only. The default is more accurate; 2 is the value of the papers, whose
        accounting needs ``C - v >= 1``.
    records, public, reproducible, model, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.

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
    >>> import pymc as pm, numpy as np
    >>> from pymc_dp import DPBarker, PrivacyBudget, RandomWalk
    >>> y = np.random.default_rng(1).normal(size=5000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     step = DPBarker(budget=budget, clip_bound=2.0, proposal=RandomWalk(0.02), laziness=0.5)
    >>> budget.expected_draws() > 100
    True
    """

    name = "dp_barker"
    settled = (*AcceptRejectStep.settled, "noise_variance")

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None,
        clip_bound: float,
        proposal: Proposal,
        laziness: float = 1.0,
        temperature: float = 1.0,
        batch_size: int | None = None,
        noise_variance: float = 1.0,
        records: Any = None,
        public: Sequence[Any] = (),
        reproducible: bool = False,
        model: Any = None,
        blocked: bool = True,
        rng: Any = None,
        compile_kwargs: dict | None = None,
    ):
        CorrectedBarker(noise_variance)  # refuses what is not offered
        super().__init__(
            vars, budget=budget, clip_bound=clip_bound, proposal=proposal, laziness=laziness,
            temperature=temperature, batch_size=batch_size, records=records, public=public, reproducible=reproducible,
            model=model, blocked=blocked, rng=rng, compile_kwargs=compile_kwargs,
        )  # fmt: skip
        self.noise_variance = float(noise_variance)
        linear, square, part = self._sides * self.temperature * self.clip_bound, 0.0, 1.0
        if self.batch_size is not None:
            per_value, per_variance = slopes(self.noise_variance, self._largest_variance())
            linear, square = self._batch_sensitivities()
            linear, square = per_value * linear, per_variance * square
            part = self.batch_size / self.likelihood.n_records
        self.family = (
            DecisionFamily(
                sensitivity_per_distance=linear,
                sensitivity_per_square=square,
                rule=Barker(),
                noise_multiplier=None,
                laziness=self.laziness,
                distances=self._typical_distances(),
                sampling_probability=part,
            )
            if math.isfinite(self.clip_bound)
            else None
        )
        self._register()

    def _largest_variance(self) -> float:
        """Bound the variance on a batch, at most 1, or refuse: ``v <= k**2 sum r**2 <= (N T b M)**2 / m``."""
        assert self.batch_size is not None
        reach = self.likelihood.n_records * self.temperature * self.clip_bound
        root, cap = math.sqrt(self.batch_size), getattr(self.proposal, "max_distance", None)
        if cap is None or reach * cap > root * (1 + 1e-12):
            raise ValueError(
                f"The variance on a batch of {self.batch_size} could exceed 1: N * temperature * clip_bound * max_distance must be at most "
                f"sqrt(batch_size) = {root:.6g}, but it is {self.likelihood.n_records} * {self.temperature:g} * {self.clip_bound:g} * "
                f"{'(no max_distance given)' if cap is None else f'{cap:g}'}. Give the proposal a max_distance of at most "
                f"{root / reach:.6g}, or use larger batches, a smaller clip_bound or temperature, or all records."
            )
        return min(1.0, (reach * cap) ** 2 / self.batch_size)

    def accept(self, move: Move, decision: Any) -> bool:
        """Decide from all records, of which the current state's likelihoods are kept, or from a batch."""
        rule: AcceptanceRule = Barker()
        if self.batch_size is None:
            estimate = self.log_ratio(move)
        else:
            estimate, variance = self.estimated_log_ratio(move)
            rule = CorrectedBarker(self.noise_variance, variance)
        return self.decide(Lazy(rule, self.laziness) if self.laziness < 1 else rule, estimate)
