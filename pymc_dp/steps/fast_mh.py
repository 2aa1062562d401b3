"""DP-Fast MH: exact acceptance tests on random batches; without a budget and with Metropolis' rule, TunaMH."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from pymc_dp.acceptance import AcceptanceRule, Barker, Penalty, check_rule
from pymc_dp.arguments import as_integer, as_positive_float
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalPoissonMinibatch
from pymc_dp.privacy.randomness.batches import poisson_count, uniforms, with_replacement
from pymc_dp.steps.accept_reject import Move, ProposalStep, Uncharged
from pymc_dp.steps.options import StepOptions
from pymc_dp.steps.proposals import Proposal


class DPFastMH(ProposalStep):
    r"""DP-Fast MH: decides from a small random batch, and still exactly (without clipping), for any model.

    With ``c = T b M(theta, theta')`` the most that one record can contribute to the log-ratio, an
    iteration draws the number of places ``B ~ Poisson(lam + N c)`` of its batch, fills each with a
    record at random, with replacement, and keeps it with probability

    .. math:: \frac{lam + N c\,(1 - u_i)/2}{lam + N c}, \qquad u_i = T\, r_i / c \in [-1, 1],

    ``r_i`` the clipped change of the record's log-likelihood. Each place that is kept adds
    ``log((2 lam + N c (1 + u_i)) / (2 lam + N c (1 - u_i)))`` to the log-ratio, to which the prior is
    added.

    **Invariance.** By the thinning of Poisson variables, record ``i`` counts ``s_i ~ Poisson(f_i)``
    times, independently of the others, with ``f_i = (2 lam + N c (1 - u_i)) / (2 N)``. For the move
    back ``u_i`` has the other sign and the rate is ``g_i = f_i + T r_i``. The ``s_i`` are auxiliary
    variables of the move, drawn from the one law on the way there and from the other on the way back,
    and with them the ratio of the extended chain is

    .. math:: \frac{p(\theta')}{p(\theta)} \prod_i e^{T r_i} \frac{e^{-g_i} g_i^{s_i}}{e^{-f_i} f_i^{s_i}}
              = \frac{p(\theta')}{p(\theta)} \prod_i (g_i / f_i)^{s_i}:

    the log-ratio above. So the chain has exactly the posterior (tempered by ``T``) under any rule in
    detailed balance, whatever the batches, if no record is clipped; for clipping see
    :class:`~pymc_dp.DPPenalty`.

    **Privacy.** The law of the batch depends on ``c``, ``lam`` and ``N``, not on the data; which
    places are kept does, and is secret. What is charged is the exact cost of the decision
    (:class:`~pymc_dp.privacy.PoissonMinibatchDecision` has the proof). Batches save time, not privacy:
    a decision costs about as much as one from all records. Substitution only: the law of the batch
    size shows the number of records.

    **Differences from the paper.** (1) One public constant ``c`` bounds all records and is enforced by
    clipping: bounds computed for each record would show the data in the sizes and contents of the
    batches. (2) The rule is Barker's (or the penalty rule) in every iteration: Metropolis' rule
    without noise, the paper's "privacy for free", is not private at any useful ``delta``, and is
    refused. (3) The exact costs are composed over all iterations; the paper claims epsilon per
    iteration. (4) All records decide where the *expected* batch reaches the limit ``full_batch_at``,
    not where the batch drawn does: given that fewer than ``K`` places were drawn, the odds of what was
    kept, there and back, have a further factor ``P(D <= K - 1 - s) / P(D' <= K - 1 - s)``, with ``s``
    the places kept and ``D`` the Poisson number of those dropped, whose rate depends on the direction.
    So the paper's algorithm is not reversible (its Theorem 3 overlooks the factor), while the program
    published with it compares the rate, as is done here.

    Parameters
    ----------
    clip_bound : float
        ``b``: most that one record's log-likelihood may change per unit of the proposal's distance.
        No default, see :class:`~pymc_dp.DPPenalty`. It also decides how large batches must be, so it
        is finite even without a budget.
    batch_rate : float, optional
        ``lam`` > 0, the part of the expected batch that does not depend on the proposal. The error
        of the log-ratio has variance of about ``(N c)**2 / lam`` times the mean of ``u**2``, so
        larger values accept more (they change the privacy of a decision by little). Default: ``(N
        c)**2 / 10`` at the root mean square distance, so that this variance is about 1 where the
        bound is three times the typical change; of the form of TunaMH's ``chi (N c)**2``.
    full_batch_at : int, optional
        ``K``: all records decide on proposals whose expected batch ``lam + N c`` has this many places
        or more. Default: the number of records. It only changes the speed. (The paper needs a limit to
        bound its costs, and recommends ``epsilon N / 6`` for its epsilon per iteration.)
    rule : AcceptanceRule
        :class:`~pymc_dp.Barker` (default) or :class:`~pymc_dp.Penalty`;
        :class:`~pymc_dp.steps.Metropolis` only without a budget: that is TunaMH.
    laziness : float, optional
        Weight ``w`` in (0, 1] of the lazy rule. Default: 1, but 0.5 for the penalty rule on batches
        in a private run, where it has no finite Rényi cost otherwise: its rejections can be far less
        probable than that the batch takes a record several times.
    **options
        See :class:`~pymc_dp.steps.ProposalStep`.

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
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(size=5000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6, chains=2)
    ...     step = dp.DPFastMH(
    ...         budget=budget,
    ...         clip_bound=2.0,
    ...         proposal=dp.RandomWalk(0.05),
    ...         temperature=0.01,
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
        rule: AcceptanceRule = Barker(),
        laziness: float | None = None,
        temperature: float = 1.0,
        **options: Unpack[StepOptions],
    ):
        private = budget is not None
        check_rule(rule, private)
        super().__init__(
            vars, budget=budget, clip_bound=clip_bound, proposal=proposal, temperature=temperature,
            laziness=_checked_laziness(laziness, rule, private), **options,
        )  # fmt: skip
        if not math.isfinite(self.clip_bound):
            raise ValueError("Batches need a finite clip_bound: it decides how large they must be.")
        self.rule = lazy = self.lazy(rule)
        if full_batch_at is not None:
            full_batch_at = as_integer("full_batch_at", full_batch_at, 1)
        self.full_batch_at = full_batch_at
        distances = self.typical_distances()
        if batch_rate is None:
            largest = self._bound(math.sqrt(float(np.mean(np.square(distances)))))
            batch_rate = max(1.0, (self.likelihood.n_records * largest) ** 2 / 10)
        #: Part of the expected batch that does not depend on the proposal.
        self.batch_rate = as_positive_float("batch_rate", batch_rate)
        self.family = None
        if private:
            self.family = PerProposalPoissonMinibatch(
                bound_per_distance=self._bound(1.0),
                rule=lazy,
                batch_rate=self.batch_rate,
                n_records=self.likelihood.n_records,
                full_batch_at=self.full_batch_at,
                distances=distances,
            )
        self.compile_batches()
        self.register()

    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """Propose, charge, decide from a batch whose law does not depend on the data, or from all records."""
        move = self.propose(theta)  # public: blind to the data
        decision = self.charge_decision(move)  # paid before any record is read
        c = self._batch_bound(move, decision)
        if c is None or math.isnan(move.prior):
            return self.choose(move, decision.rule, self.log_ratio(move))
        n, lam = self.likelihood.n_records, self.batch_rate
        capacity = lam + n * c
        size = poisson_count(capacity, self._bits)
        index = with_replacement(n, size, self._bits)
        u_total = (n * self.temperature) * self.changes(move, index)  # N c u_i, in [-N c, N c]
        # 2 N f_i and 2 N g_i: twice the capacity times the probability to keep a place.
        forward, backward = 2 * lam + n * c - u_total, 2 * lam + n * c + u_total
        kept = uniforms(size, self._bits) * (2 * capacity) < forward
        log_ratio = float(np.log(backward[kept] / forward[kept]).sum()) + move.prior
        return self.choose(move, decision.rule, log_ratio)  # one secret Bernoulli draw

    def _bound(self, distance: float) -> float:
        """``c``: bound on a record's contribution to the log-ratio of a move of this length."""
        return self.temperature * self.clip_bound * distance

    def _batch_bound(self, move: Move, decision: Any) -> float | None:
        """``c`` of a decision from a batch, as charged; None if all records decide."""
        if not isinstance(decision, Uncharged):
            return getattr(decision, "log_ratio_bound", None)
        c, n = self._bound(move.distance), self.likelihood.n_records
        limit = min(n, self.full_batch_at or n)
        return c if self.batch_rate + n * c < limit else None

    def expected_batch(self, distance: npt.ArrayLike) -> np.ndarray:
        """Records that an iteration is expected to read, given the public distance of its proposal.

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
        rate = self.batch_rate + n * self._bound(1.0) * distance
        limit = n if self.full_batch_at is None else min(n, self.full_batch_at)
        return np.where(distance > 0, np.where(rate >= limit, n, rate), 0.0)


def _checked_laziness(laziness: float | None, rule: AcceptanceRule, private: bool) -> float:
    """The laziness; by default 0.5 for the penalty rule in a private run, where 1 has no finite cost."""
    has_no_cost = private and isinstance(rule, Penalty)
    if laziness is None:
        return 0.5 if has_no_cost else 1.0
    if laziness == 1 and has_no_cost:
        raise ValueError(
            f"The rule {rule.name} has no finite Rényi cost on batches: its rejections can be far less probable than that a record is "
            "taken several times. Leave out laziness (0.5 then), or use Barker(), or DPPenalty, which decides from all records."
        )
    return laziness
