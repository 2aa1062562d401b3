"""DP penalty: Metropolis-Hastings with a noisy, clipped log-likelihood ratio."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any

from pymc_dp.acceptance import AcceptanceRule, Lazy, Metropolis, Penalty
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import DecisionFamily
from pymc_dp.privacy.mechanisms import real
from pymc_dp.steps.accept_reject import AcceptRejectStep, Move
from pymc_dp.steps.proposals import Proposal

__all__ = ["DPPenalty"]


class DPPenalty(AcceptRejectStep):
    r"""Metropolis-Hastings by the penalty method, private, for any model; exact on all records (without clipping).

    Each iteration proposes ``theta'``, computes

    .. math:: \lambda = T \sum_i \operatorname{clip}(\ell_i(\theta') - \ell_i(\theta), \pm b M(\theta, \theta'))
              + \log p(\theta') - \log p(\theta)

    and accepts with probability :class:`~pymc_dp.acceptance.Penalty` ``(s)``, which is the law of
    Metropolis' test on ``lambda + N(0, s**2)`` with the noise corrected for. Changing one record
    moves ``lambda`` by at most ``2 T b M`` (substitution; half of it for add/remove); what is
    charged is the released decision, not the noisy ``lambda`` behind it.

    With ``batch_size`` each iteration looks at ``m`` records only, drawn without replacement. With
    ``r_i`` the clipped changes of the log-likelihood and ``k = N T / m``,

    .. math:: \hat\lambda = k \sum_{i \in B} r_i + \log p(\theta') - \log p(\theta), \qquad
              v = k^2\, \frac{N - m}{N - 1} \Big( \sum_B r_i^2 - \frac{(\sum_B r_i)^2}{m} \Big)

    take the place of ``lambda``, and the decision is that of the penalty rule at ``lambda - v / 2``:
    the error of the batch is corrected for like noise. **Approximate**: the error is taken to be
    normal with the estimated variance (central limit theorem). For symmetric contributions of the
    records the bias is below 0.005 posterior standard deviations up to ``v = 3``; skewed ones shift
    the mean, exponential ones in batches of 200 of 2000 by 0.02 at ``v = 0.1`` and by 0.14 at ``v =
    1`` (a table is in the page on guarantees). A record of the batch moves
    ``lambda - v / 2`` by at most ``2 k b M + 2 (k b M)**2 (N - m) / (N - 1) (m - 1) / m``, and the
    charge is for a decision that sees it with probability ``m / N``. Substitution only.
    Laziness of 0.5 buys about a third more accepted moves, and twice as many where a record moves the
    estimate by 1 or more and ``epsilon`` is small.

    On all records the chain has exactly the posterior (tempered by ``T``) if no record is clipped. With clipping
    it is an approximation: the clipped log-ratio is antisymmetric, but clipped ratios along
    different paths between two states need not agree, so in general no density satisfies detailed
    balance. Choose the clip bound so that few records reach it, from public knowledge or simulated
    data, never from the private data.

    Parameters
    ----------
    vars : list of variables, optional
        Variables to update, all by default.
    budget : PrivacyBudget or None
        What may be spent. None, which must be said, runs without privacy.
    clip_bound : float
        ``b``: most that one record's log-likelihood may change per unit of the proposal's distance.
        No default: it trades bias against privacy, and only the user knows what is public.
        ``math.inf`` only without a budget.
    proposal : Proposal
        :class:`~pymc_dp.steps.proposals.RandomWalk`, :class:`~pymc_dp.steps.proposals.OneComponent`
        or :class:`~pymc_dp.steps.proposals.GuidedWalk`.
    noise_scale : float, optional
        Standard deviation ``s`` of the noise on the log-ratio; default 2.0 (unless
        ``noise_multiplier`` is given), which nearly maximises accepted moves per unit of privacy:
        at equal sensitivity, 2.0 gives 753 where 1.0 gives 470, 1.4 gives 629 and 3.0 gives 657
        (iterations allowed times acceptance at ``lambda = 0``; sensitivity 0.044, epsilon 4, delta
        1e-6).
    noise_multiplier : float, optional
        Noise proportional to the sensitivity, ``s = noise_multiplier * 2 T b M``, as in the papers
        (their ``tau * sqrt(n)``).
    laziness : float
        Weight ``w`` in (0, 1] of the lazy rule. Values below 1 buy more, slower iterations: at 0.5
        about a third more accepted moves for the same privacy.
    temperature : float
        ``T`` in (0, 1], public. 1 targets the posterior.
    batch_size : int, optional
        Records per iteration ``m``, from 2 on, drawn without replacement with secret randomness;
        all by default. An iteration then takes time proportional to it, not to the number of
        records.
    records, public, reproducible, model, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or a batch is asked for with a budget for adjacency
        ``"add_remove"``, for which its cost is not proved.

    References
    ----------
    Yildirim, Ermis (2019), Exact MCMC with differentially private moves,
    https://doi.org/10.1007/s11222-018-9847-x; Räisä, Koskela, Honkela (2021), Differentially
    private Hamiltonian Monte Carlo, https://arxiv.org/abs/2106.09376. Batches: Räisä (2021),
    Differentially private Metropolis-Hastings algorithms, section 3.4, with the constant 3 of its
    Lemma 3.4 lowered to 2.

    Examples
    --------
    >>> import pymc as pm, numpy as np
    >>> from pymc_dp import DPPenalty, PrivacyBudget, RandomWalk
    >>> y = np.random.default_rng(1).normal(size=5000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     step = DPPenalty(budget=budget, clip_bound=3.0, proposal=RandomWalk(0.02))
    >>> budget.expected_draws() > 100
    True
    """

    name = "dp_penalty"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None,
        clip_bound: float,
        proposal: Proposal,
        noise_scale: float | None = None,
        noise_multiplier: float | None = None,
        laziness: float = 1.0,
        temperature: float = 1.0,
        batch_size: int | None = None,
        records: Any = None,
        public: Sequence[Any] = (),
        reproducible: bool = False,
        model: Any = None,
        blocked: bool = True,
        rng: Any = None,
        compile_kwargs: dict | None = None,
    ):
        if noise_scale is not None and noise_multiplier is not None:
            raise ValueError("Give noise_scale or noise_multiplier, not both.")
        if noise_multiplier is not None and real(clip_bound) == math.inf:
            raise ValueError("noise_multiplier needs a finite clip_bound.")
        if noise_scale is None and noise_multiplier is None:
            noise_scale = 2.0
        if noise_scale == 0 and budget is not None:
            raise ValueError(
                "noise_scale=0 is Metropolis' rule, which is not private at any epsilon: a rejection can be impossible under one data "
                "set and likely under its neighbour. Use noise of about 1 to 2, or budget=None for a run without privacy."
            )
        super().__init__(
            vars, budget=budget, clip_bound=clip_bound, proposal=proposal, laziness=laziness,
            temperature=temperature, batch_size=batch_size, records=records, public=public, reproducible=reproducible,
            model=model, blocked=blocked, rng=rng, compile_kwargs=compile_kwargs,
        )  # fmt: skip
        rule: AcceptanceRule | None = None
        if noise_scale is not None:
            rule = Penalty(noise_scale) if noise_scale else Metropolis()
        if noise_scale == 0 or math.isinf(self.clip_bound):
            # Without a finite cost there is no family of charged decisions, only a rule.
            self.family = None
            assert rule is not None
            self._plain_rule = rule if laziness == 1 else Lazy(rule, laziness)
        else:
            self.family = self._decisions(rule, noise_multiplier)
        self._register()

    def _decisions(
        self, rule: AcceptanceRule | None, noise_multiplier: float | None
    ) -> DecisionFamily:
        n, m = self.likelihood.n_records, self.batch_size
        linear, square = self._sides * self.temperature * self.clip_bound, 0.0
        if m is not None:
            linear, square = self._batch_sensitivities()
        return DecisionFamily(
            sensitivity_per_distance=linear,
            sensitivity_per_square=square / 2,
            rule=rule,
            noise_multiplier=noise_multiplier,
            laziness=self.laziness,
            distances=self._typical_distances(),
            sampling_probability=1.0 if m is None else m / n,
        )

    def accept(self, move: Move, decision: Any) -> bool:
        """Decide from all records (one likelihood evaluation, as the current state's is kept) or a batch."""
        rule = self._plain_rule if decision is None else decision.rule
        if self.batch_size is None:
            return self.decide(rule, self.log_ratio(move))
        estimate, variance = self.estimated_log_ratio(move)
        return self.decide(rule, estimate - variance / 2)
