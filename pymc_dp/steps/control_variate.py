"""DP control variates: decide only about what a released sum of gradients leaves of each record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Penalty
from pymc_dp.privacy.binding import check_paid
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import DecisionFamily
from pymc_dp.steps.accept_reject import DecidingStep, Move, State
from pymc_dp.steps.surrogate import Position, Surrogate

__all__ = ["DPControlVariate"]

#: Sums of 2**31 records, the limit, are rounded by less than this part of the bound on one of them.
_ROUNDING = 1e-6
_PAIRS = 2000  # of draws from the surrogate, whose costs are planned with


@dataclass
class _Place(State):
    """A state with its position on the surrogate, and the sum of what is left of the records: private.

    Its prior is what the target has, in public, beyond the surrogate: the mean of what is cut off,
    and the model's own prior in place of a stand-in's.
    """

    position: Position | None = None
    left: float | None = None


class DPControlVariate(DecidingStep):
    r"""Metropolis-Hastings on what a public surrogate leaves of each record's log-likelihood.

    A surrogate (:func:`~pymc_dp.private_surrogate`) predicts the log-likelihood ratio of record ``i`` to
    the reference, ``r_i``, from the record's clipped gradient ``f_i`` there, whose sum over all records
    was released once. What is left is small, of order ``1 / N`` in the bulk of the posterior, and so is
    its bound ``c(theta)``, which is public:

    .. math:: e_i(\theta) = \operatorname{clip}\big(r_i(\theta) - \alpha(\theta) - \beta(\theta)' f_i, \pm c(\theta)\big).

    Each iteration runs a few steps of a chain on the surrogate, which cost nothing, and accepts where
    that led to with the probability of Barker's rule at the log-ratio

    .. math:: T \sum_i \{e_i(\theta') - e_i(\theta)\} + T N \{\kappa(\theta') - \kappa(\theta)\},

    with :math:`\kappa` the mean of what the bounds cut off, from simulated records. A record moves it by at most
    ``2 T (c(theta) + c(theta'))`` (substitution; half of it for add/remove), which is what is charged
    for. So the chain leaves exactly

    .. math:: \log p(\theta) + T \Big\{N (\alpha + \kappa) + \beta' \hat s + \tfrac{T}{2} \beta' C \beta + \sum_i e_i(\theta)\Big\}

    invariant, whatever is clipped: each record's *potential* is clipped, not its change. If nothing is,
    that is the posterior given the noisy sum of gradients instead of the sum itself (see
    :class:`~pymc_dp.steps.surrogate.Surrogate`).

    The first draw of each chain is one of the surrogate's, and costs nothing; where PyMC would have
    it begin does not matter.

    Parameters
    ----------
    vars : list of variables, optional
        All of the model's, as by default; others are refused.
    budget : PrivacyBudget or None
        What may be spent. None, which must be said, runs without charge: the surrogate is as private
        as it was made.
    surrogate : Surrogate
        Of this model and these data, paid for by the same budget; its temperature is the step's.
    noise_scale : float, optional
        Of the penalty rule, instead of Barker's.
    laziness : float
        Weight of the lazy rule, in (0, 1]; 1 for none.
    records : array_like of int, or dict of such arrays, optional
        Privacy units, those of the surrogate.
    public, reproducible, model, blocked, rng, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the surrogate has other parameters than the model.
    PrivacyLeak
        If another budget paid for the surrogate.

    References
    ----------
    Control variates for Metropolis-Hastings on subsamples: Bardenet, Doucet, Holmes (2017), On Markov
    chain Monte Carlo methods for tall data, https://jmlr.org/papers/v18/15-205.html. Barker's rule as
    a private decision: :class:`~pymc_dp.DPBarker`.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(30.0, 2.0, size=200_000)
    >>> with pm.Model():
    ...     mu, sigma = pm.Normal("mu", 0, 100), pm.HalfNormal("sigma", 10)
    ...     _ = pm.Normal("y", mu, sigma, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=2)
    ...     start = dp.private_start(budget=budget, start={"mu": 20.0, "sigma": 5.0})
    ...     surrogate = dp.private_surrogate(budget=budget, start=start)
    ...     step = dp.DPControlVariate(budget=budget, surrogate=surrogate)
    >>> budget.expected_draws() > 100
    True
    """

    name = "dp_control_variate"
    settled = (*DecidingStep.settled, "surrogate")

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None,
        surrogate: Surrogate,
        noise_scale: float | None = None,
        laziness: float = 1.0,
        records: Any = None,
        public: Sequence[Any] = (),
        reproducible: bool = False,
        model: Any = None,
        blocked: bool = True,
        rng: Any = None,
        compile_kwargs: dict | None = None,
    ):
        if isinstance(budget, PrivacyBudget):
            check_paid("surrogate", getattr(surrogate, "budget_id", None), budget.id)
        rule: AcceptanceRule = Barker() if noise_scale is None else Penalty(noise_scale)
        super().__init__(
            vars, budget=budget, clip_bound=1.0, laziness=laziness, temperature=surrogate.temperature,
            records=records, public=public, reproducible=reproducible, model=model, blocked=blocked, rng=rng,
            compile_kwargs=compile_kwargs,
        )  # fmt: skip
        if not len(self.part) == self.likelihood.n_dim == len(surrogate.total):
            raise ValueError(
                f"The surrogate is of {len(surrogate.total)} parameters (on the unconstrained scale), the model has "
                f"{self.likelihood.n_dim}, and this step would update {len(self.part)}: all three must be the same."
            )
        self.surrogate = surrogate
        self._rule = rule if laziness == 1 else Lazy(rule, laziness)
        if budget is None:
            self.family = None
        else:
            pairs = np.random.default_rng(0).choice(surrogate.bounds, size=(_PAIRS, 2)).sum(axis=1)
            self.family = DecisionFamily(
                sensitivity_per_distance=self._sides * self.temperature * (1 + _ROUNDING),
                rule=rule,
                noise_multiplier=None,
                laziness=self.laziness,
                distances=tuple(pairs.tolist()),
            )
        #: Features and log-likelihoods of the records at the reference: private.
        self._reference: tuple[np.ndarray, np.ndarray] | None = None
        # Compiled now, what would else be compiled in every worker.
        self.likelihood.gradients(surrogate.features.theta, np.zeros(1, dtype=int))
        self._register()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_reference": None}

    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """Move on the surrogate, charge, decide."""
        if not isinstance(self._current, _Place) or self._current.position is None:
            first = self.surrogate.at(self.rng.choice(self.surrogate.draws))
            assert first is not None  # it was there
            self._current = self._place(self.surrogate.move(first, self.rng))
            return self._current.theta, True, 0.0
        old, position = self._current, self._current.position
        new_position = self.surrogate.move(position, self.rng)
        new = self._place(new_position)
        distance = position.expansion.bound + new_position.expansion.bound
        accepted = self.settle(Move(old, new, new.prior - old.prior, distance))
        return (new.theta if accepted else theta), accepted, distance

    def accept(self, move: Move, decision: Any) -> bool:
        """Decide from all records; what is left of those at the current state is kept."""
        return self.decide(self._rule if decision is None else decision.rule, self.log_ratio(move))

    def log_ratio(self, move: Move) -> float:
        """What the target has beyond the surrogate: of the records, and in public."""
        return self.temperature * (self._left(move.new) - self._left(move.old)) + move.prior

    def _place(self, position: Position) -> _Place:
        theta, features = position.theta, self.surrogate.features
        # A stand-in may have another prior.
        prior = self.likelihood.log_prior(theta) - features.log_prior(theta)
        cut = features.cut(theta, position.expansion)
        prior += self.temperature * self.surrogate.n_records * cut
        return _Place(theta, prior, position=position)

    def _left(self, place: State) -> float:
        """Sum over records of what is left, clipped, on a dyadic grid."""
        assert isinstance(place, _Place) and place.position is not None
        if place.left is None:
            features, likelihood = self.surrogate.features, self.likelihood
            if self._reference is None:
                gradients = likelihood.gradients(features.theta)
                self._reference = features.of(gradients), likelihood.logp(features.theta)
            values, base = self._reference
            intercept, slope, bound = place.position.expansion
            predicted = base + intercept + values @ slope
            place.left = likelihood.clipped_sum(likelihood.logp(place.theta), predicted, bound)
        return place.left
