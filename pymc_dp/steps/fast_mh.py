"""DP-Fast MH and TunaMH: exact acceptance tests on batches."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Metropolis, Penalty
from pymc_dp.privacy.batches import poisson_count, uniforms, with_replacement
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import DecisionFamily, Family, PoissonMinibatchFamily
from pymc_dp.privacy.mechanisms import Decision, real, whole
from pymc_dp.steps.accept_reject import AcceptRejectStep, Move
from pymc_dp.steps.proposals import Proposal

__all__ = ["DPFastMH", "TunaMH"]


class _PoissonMinibatchStep(AcceptRejectStep):
    """The acceptance test that both samplers share; see :class:`DPFastMH` for what it does."""

    settled = (*AcceptRejectStep.settled, "rule", "batch_rate", "full_batch_at")

    def __init__(
        self,
        vars: Sequence[Any] | None,
        *,
        batch_rate: float | None,
        full_batch_at: int | None,
        full_batch: bool,
        rule: AcceptanceRule,
        **options: Any,
    ):
        if full_batch and not (batch_rate is None and full_batch_at is None):
            raise ValueError(
                f"full_batch=True lets all records decide always, so batch_rate={batch_rate!r} and full_batch_at={full_batch_at!r} would have "
                "no effect: leave them out, or leave out full_batch."
            )
        super().__init__(vars, **options)
        if not math.isfinite(self.clip_bound) and not full_batch:
            raise ValueError("Batches need a finite clip_bound: it decides how large they must be.")
        self.rule = rule if self.laziness == 1 else Lazy(rule, self.laziness)
        self.full_batch_at = (
            None if full_batch_at is None else whole("full_batch_at", full_batch_at, 1)
        )
        distances = self._typical_distances()
        if batch_rate is None and not full_batch:
            typical = self._slope * math.sqrt(float(np.mean(np.square(distances))))
            batch_rate = max(1.0, (self.likelihood.n_records * typical) ** 2 / 10)
        if batch_rate is not None and not 0 < real(batch_rate) < math.inf:
            raise ValueError(f"batch_rate must be positive and finite, got {batch_rate!r}.")
        #: Part of the expected batch that does not depend on the proposal; None if all records decide.
        self.batch_rate = None if batch_rate is None else float(batch_rate)
        self.family = None if self.budget is None else self._decisions(distances)
        if not full_batch:
            self._compile_batches()
        self._register()

    @property
    def _slope(self) -> float:
        """Largest contribution of a record to the log-ratio, per unit of distance."""
        return self.temperature * self.clip_bound

    def _decisions(self, distances: tuple[float, ...]) -> Family:
        if self.batch_rate is None:
            return DecisionFamily(self._sides * self._slope, self.rule, None, 1.0, distances)
        return PoissonMinibatchFamily(
            self._slope, self.rule, self.batch_rate, self.likelihood.n_records, self.full_batch_at, distances,
        )  # fmt: skip

    def expected_batch(self, distance: npt.ArrayLike) -> np.ndarray:
        """Records that an iteration is expected to look at, given the public distance of its proposal.

        Parameters
        ----------
        distance : array_like
            Distances ``M``, such as the statistic ``step_distance``; 0 where nothing was proposed.

        Returns
        -------
        ndarray
            Expected places of the batch, or all records. (How many were drawn is secret.)
        """
        distance = np.asarray(distance, dtype=float)
        n = self.likelihood.n_records
        if self.batch_rate is None:
            return np.where(distance > 0, float(n), 0.0)
        rate = self.batch_rate + n * self._slope * distance
        limit = n if self.full_batch_at is None else min(n, self.full_batch_at)
        return np.where(distance > 0, np.where(rate >= limit, n, rate), 0.0)

    def accept(self, move: Move, decision: Any) -> bool:
        """Decide from a batch whose law does not depend on the data, or from all records."""
        n, rate = self.likelihood.n_records, self.batch_rate
        if rate is None or isinstance(decision, Decision):
            return self.decide(self.rule, self.log_ratio(move))
        if decision is None:  # no budget, so nobody else has looked whether a batch makes sense
            bound = self._slope * move.distance
            if rate + n * bound >= min(n, self.full_batch_at or n):
                return self.decide(self.rule, self.log_ratio(move))
        else:
            bound = decision.log_ratio_bound
        most = n * bound
        size = poisson_count(rate + most, self._bits)
        index = with_replacement(n, size, self._bits)
        pull = (n * self.temperature) * self.changes(move, index)  # most times u, in [-most, most]
        # Twice lam + most (1 - u) / 2, and what the odds of keeping are for the move back.
        here, back = 2 * rate + most - pull, 2 * rate + most + pull
        kept = uniforms(size, self._bits) * (2 * (rate + most)) < here
        return self.decide(self.rule, float(np.log(back[kept] / here[kept]).sum()) + move.prior)


class DPFastMH(_PoissonMinibatchStep):
    r"""DP-Fast MH: decides from a small random batch, and still exactly (without clipping), for any model.

    With ``c = T b M(theta, theta')`` the most that one record can contribute to the log-ratio, an
    iteration draws the number of places ``B ~ Poisson(lam + N c)`` of its batch, fills each with a
    record at random, with replacement, and keeps it with probability

    .. math:: \frac{lam + N c\,(1 - u_i)/2}{lam + N c}, \qquad u_i = T\, r_i / c \in [-1, 1],

    ``r_i`` the clipped change of the record's log-likelihood. Each place that is kept adds
    ``log((2 lam + N c (1 + u_i)) / (2 lam + N c (1 - u_i)))`` to the log-ratio, to which the prior is
    added. How often each record counts is then a set of auxiliary variables, and the log-ratio that
    of the extended chain: **exact** for any rule in detailed balance, whatever the batches, if no
    record is clipped; of clipped chains see :class:`~pymc_dp.DPPenalty`.

    This differs from the paper in four ways. One public constant ``c`` bounds all records and is
    enforced by clipping: bounds computed for each record would show the data in the sizes and
    contents of the batches. The rule is Barker's (or the penalty rule) in every iteration:
    Metropolis' rule without noise, the paper's "privacy for free", is not private at any useful
    ``delta``, and is refused. And what is charged is the exact cost of the decision
    (:class:`~pymc_dp.privacy.PoissonMinibatchDecision`), composed over all iterations, not a claim
    per iteration. And all records decide where the *expected* batch reaches the limit
    ``full_batch_at``, not where the batch drawn does: given that fewer than ``K`` places were drawn,
    the odds of what was kept, there and back, have a further factor ``P(D <= K - 1 - s) / P(D' <= K -
    1 - s)``, with ``s`` the places kept and ``D`` the Poisson number of those dropped, whose rate
    depends on the direction. So the paper's algorithm is not reversible (its Theorem 3 overlooks the
    factor), while the program published with it compares the rate, as is done here.

    Batches buy speed, not privacy: a decision costs about as much as one from all records.
    Substitution only: the law of the batch size shows the number of records.

    Parameters
    ----------
    vars : list of variables, optional
        Variables to update, all by default.
    budget : PrivacyBudget or None
        What may be spent. None, which must be said, runs without privacy.
    clip_bound : float
        ``b``: most that one record's log-likelihood may change per unit of the proposal's distance.
        No default, see :class:`~pymc_dp.DPPenalty`. It also decides how large batches must be.
    proposal : Proposal
        :class:`~pymc_dp.RandomWalk`, :class:`~pymc_dp.OneComponent` or :class:`~pymc_dp.GuidedWalk`.
    batch_rate : float, optional
        ``lam`` > 0, the part of the expected batch that does not depend on the proposal. The error
        of the log-ratio has variance of about ``(N c)**2 / lam`` times the mean of ``u**2``, so
        larger values accept more (they change the privacy of a decision by little). Default: ``(N
        c)**2 / 10`` at the root mean square distance, so that this variance is about 1 where the
        bound is three times the typical change; the same form as TunaMH's ``chi (N c)**2``.
    full_batch_at : int, optional
        ``K``: all records decide for proposals whose expected batch ``lam + N c`` has this many places
        or more. Default: the number of records. The paper needs a limit to bound its costs and
        recommends ``epsilon N / 6`` for its epsilon per iteration; here it is a matter of speed only.
    full_batch : bool
        Let all records decide always: the full-batch version, which is :class:`~pymc_dp.DPBarker`
        under Barker's rule.
    rule : AcceptanceRule
        :class:`~pymc_dp.Barker` (default) or :class:`~pymc_dp.Penalty`.
    laziness : float, optional
        Weight ``w`` in (0, 1] of the lazy rule. Default: 1, but 0.5 for the penalty rule on batches
        in a private run, where it has no finite Rényi cost otherwise (its rejections can be far more
        improbable than that a record is taken several times).
    temperature : float
        ``T`` in (0, 1], public. 1 targets the posterior.
    records, public, reproducible, model, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.

    Raises
    ------
    ValueError
        If an argument is out of its range, the rule has no finite cost, or the budget is for
        adjacency ``"add_remove"``, for which the cost of batches is not proved.

    References
    ----------
    Zhang, Zhang (2023), DP-Fast MH, https://arxiv.org/abs/2303.06171; Zhang, Cooper, De Sa (2020),
    Asymptotically optimal exact minibatch Metropolis-Hastings, https://arxiv.org/abs/2006.11677.

    Examples
    --------
    >>> import pymc as pm, numpy as np
    >>> from pymc_dp import DPFastMH, PrivacyBudget, RandomWalk
    >>> y = np.random.default_rng(1).normal(size=5000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     step = DPFastMH(
    ...         budget=budget, clip_bound=2.0, proposal=RandomWalk(0.05), temperature=0.01
    ...     )
    >>> bool(step.expected_batch(0.05) < 50)
    True
    """

    name = "dp_fast_mh"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None,
        clip_bound: float,
        proposal: Proposal,
        batch_rate: float | None = None,
        full_batch_at: int | None = None,
        full_batch: bool = False,
        rule: AcceptanceRule = Barker(),
        laziness: float | None = None,
        temperature: float = 1.0,
        records: Any = None,
        public: Sequence[Any] = (),
        reproducible: bool = False,
        model: Any = None,
        blocked: bool = True,
        rng: Any = None,
        compile_kwargs: dict | None = None,
    ):
        if not isinstance(rule, AcceptanceRule):
            raise TypeError(f"rule must be an acceptance rule such as Barker(), got {rule!r}.")
        inner = rule.rule if isinstance(rule, Lazy) else rule
        if budget is not None and isinstance(inner, Metropolis):
            raise ValueError(
                f"The rule {rule.name} is refused in a private run: a rejection can be impossible under one data set and likely under "
                "its neighbour, so a decision is not (epsilon, delta)-private for any useful delta. Use Barker() or Penalty(scale); for a "
                "run without privacy, TunaMH or budget=None."
            )
        if laziness is None:
            dear = budget is not None and isinstance(rule, Penalty) and not full_batch
            laziness = 0.5 if dear else 1.0
        elif laziness == 1 and budget is not None and isinstance(rule, Penalty) and not full_batch:
            raise ValueError(
                f"The rule {rule.name} has no finite Rényi cost on batches: its rejections can be far more improbable than that a record is "
                "taken several times. Leave out laziness (0.5 then), or use Barker(), or full_batch=True."
            )
        super().__init__(
            vars, budget=budget, clip_bound=clip_bound, proposal=proposal, batch_rate=batch_rate,
            full_batch_at=full_batch_at, full_batch=full_batch, rule=rule, laziness=laziness,
            temperature=temperature, records=records, public=public, reproducible=reproducible, model=model,
            blocked=blocked, rng=rng, compile_kwargs=compile_kwargs,
        )  # fmt: skip


class TunaMH(_PoissonMinibatchStep):
    r"""TunaMH: exact Metropolis-Hastings on batches, **without privacy**.

    The base of :class:`DPFastMH`, for comparison and for public data: the same batches, Metropolis'
    rule, nothing charged. Batches and decisions follow PyMC's ``random_seed``.

    Parameters
    ----------
    vars : list of variables, optional
        Variables to update, all by default.
    clip_bound : float
        ``b``: one public constant that bounds the change of every record's log-likelihood per unit
        of the proposal's distance. Larger changes are clipped (then the chain is approximate).
    proposal : Proposal
        :class:`~pymc_dp.RandomWalk`, :class:`~pymc_dp.OneComponent` or :class:`~pymc_dp.GuidedWalk`.
    batch_rate : float, optional
        As for :class:`DPFastMH`.
    temperature : float
        ``T`` in (0, 1].
    records, public, model, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.

    References
    ----------
    Zhang, Cooper, De Sa (2020), Asymptotically optimal exact minibatch Metropolis-Hastings,
    https://arxiv.org/abs/2006.11677.
    """

    name = "tuna_mh"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        clip_bound: float,
        proposal: Proposal,
        batch_rate: float | None = None,
        temperature: float = 1.0,
        records: Any = None,
        public: Sequence[Any] = (),
        model: Any = None,
        blocked: bool = True,
        rng: Any = None,
        compile_kwargs: dict | None = None,
    ):
        super().__init__(
            vars, budget=None, clip_bound=clip_bound, proposal=proposal, batch_rate=batch_rate,
            full_batch_at=None, full_batch=False, rule=Metropolis(), laziness=1.0,
            temperature=temperature, records=records, public=public, reproducible=True, model=model,
            blocked=blocked, rng=rng, compile_kwargs=compile_kwargs,
        )  # fmt: skip
