"""What samplers share in which the data accept or reject a move: states, charges, log-ratios, the secret draw."""

from __future__ import annotations

import copy
import math

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from pymc_dp.acceptance import AcceptanceRule, Lazy, Metropolis
from pymc_dp.arguments import as_batch_size, as_clip_bound, as_float, as_fraction
from pymc_dp.display import Shown
from pymc_dp.model.sums.exact_sums import clipped_changes
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.mechanism import Mechanism
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalCost, PerProposalDecision
from pymc_dp.privacy.randomness.batches import without_replacement
from pymc_dp.privacy.randomness.bits import decide
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.options import DecisionOptions, ProposalOptions, StepOptions
from pymc_dp.steps.proposals import Proposal

#: Number of draws from the public law of a proposal, to plan with.
PLANNING_DRAWS = 2000


@dataclass
class State(Shown):
    """A state of the chain, with what was computed there.

    Parameters
    ----------
    theta : array of shape (n_dim,)
        Position, on the unconstrained scale.
    prior : float
        Log-prior.
    gradient : array, optional
        Noisy gradient, which is released: only for samplers that use it.

    Examples
    --------
    >>> dp.steps.State(theta=np.zeros(2), prior=-1.5).prior
    -1.5
    """

    theta: np.ndarray
    prior: float
    gradient: np.ndarray | None = None


@dataclass
class Move(Shown):
    """A proposed move.

    Parameters
    ----------
    old, new : State
        Its ends.
    prior : float
        Public part of the log-ratio: change of the log-prior, and the log-ratio of the proposal
        densities where these differ. Infinite or NaN where a log-prior is infinite.
    distance : float
        ``M(theta, theta')``, public and symmetric.

    Examples
    --------
    >>> old, new = (dp.steps.State(np.full(1, x), prior=-x) for x in (1.0, 3.0))
    >>> dp.steps.Move(old, new, prior=new.prior - old.prior, distance=2.0).prior
    -2.0
    """

    old: State
    new: State
    prior: float
    distance: float


@dataclass(frozen=True)
class Uncharged:
    """A decision without a finite cost, in a run without a budget."""

    rule: AcceptanceRule | None


class AcceptRejectStep(DPStep):
    """Base class of steps that make one accept/reject decision per iteration, from a clipped log-ratio.

    A subclass sets :attr:`family`, the cost of a decision at each distance, calls
    :meth:`~pymc_dp.steps.DPStep.register` at the end of its constructor, and writes
    :meth:`~pymc_dp.steps.DPStep.transition` in the order propose, charge, decide.

    Parameters
    ----------
    clip_bound : float
        ``b``: most that one record's log-likelihood may change per unit of the move's distance.
        No default: it trades bias against privacy, and must come from public knowledge or simulated
        data, never from the private data. ``math.inf`` only without a budget.
    laziness : float
        Weight ``w`` in (0, 1] of the lazy rule. Values below 1 allow more iterations, of which fewer
        move.
    temperature : float
        ``T`` in (0, 1], public: power of the likelihood. 1 targets the posterior.
    **options
        See :class:`~pymc_dp.steps.DPStep`.

    Examples
    --------
    >>> class MyStep(dp.steps.AcceptRejectStep):
    ...     def transition(self, theta):
    ...         move = ...  # a dp.steps.Move that does not depend on the data
    ...         decision = self.charge_decision(move)  # before any record is read
    ...         log_ratio = self.log_ratio(move)  # from the records
    ...         return self.choose(move, decision.rule, log_ratio)  # one secret draw
    """

    #: Cost of a decision, by the distance of the move; None without a finite cost.
    family: PerProposalCost | None
    #: Rule of decisions; None if the noise of the rule follows the distance.
    rule: AcceptanceRule | None = None

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None,
        clip_bound: float,
        laziness: float = 1.0,
        temperature: float = 1.0,
        **options: Unpack[StepOptions],
    ):
        self.clip_bound = as_clip_bound(
            "clip_bound", clip_bound, budget is not None, "without it one record could decide everything. "
            "It bounds the change of one record's log-likelihood per unit of the proposal's distance.",
        )  # fmt: skip
        self.laziness = as_fraction("laziness", laziness)
        self.temperature = as_fraction("temperature", temperature)
        super().__init__(vars, budget=budget, **options)

    @property
    def sensitivity_per_distance(self) -> float:
        """Most that one record can change the log-ratio, per unit of distance: ``2 T b`` or ``T b``."""
        return self.sensitivity_factor * self.temperature * self.clip_bound

    def lazy(self, rule: AcceptanceRule) -> AcceptanceRule:
        """Return the rule with the laziness of this step."""
        return rule if self.laziness == 1 else Lazy(rule, self.laziness)

    def _decisions(
        self, rule: AcceptanceRule | None, noise_multiplier: float | None, distances: tuple[float, ...], **batch: float
    ) -> PerProposalDecision | None:  # fmt: skip
        """Cost of decisions, None if it is not finite; ``batch`` has the fields that describe subsampling."""
        if math.isinf(self.clip_bound) or isinstance(rule, Metropolis):
            return None
        batch.setdefault("sensitivity_per_distance", self.sensitivity_per_distance)
        return PerProposalDecision(
            rule=rule, noise_multiplier=noise_multiplier, laziness=self.laziness, distances=distances, **batch
        )  # fmt: skip

    def mechanisms(self) -> tuple[tuple[Mechanism, int], ...]:
        """One decision per iteration; its cost follows the public distance of the proposal."""
        return () if self.family is None else ((self.family, 1),)

    def _reset_chain(self) -> None:
        super()._reset_chain()
        self.likelihood.forget()
        self._current: State | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_current": None}  # of one chain only

    def current(self, theta: np.ndarray) -> State:
        """Return the current state, without what was computed before another step moved other variables."""
        if self._current is None or self._current.theta.tobytes() != theta.tobytes():
            self._current = State(theta, self.likelihood.log_prior(theta))
        return self._current

    # ------------------------------------------------------------------ charge

    def charge_decision(self, move: Move) -> Any:
        """Pay for the decision on a move; return the mechanism that was paid for, whose ``rule`` decides."""
        if self.family is None:
            return Uncharged(self.rule)
        # The size of the public part decides how coarsely the log-ratio is rounded.
        offset = abs(move.prior) if math.isfinite(move.prior) else 0.0
        decision = self.family.at(move.distance, offset)
        self.charge(((decision, 1),))
        return decision

    # ------------------------------------------------------------------ decide

    def log_ratio(self, move: Move) -> float:
        """``T sum_i clip(l_i(theta') - l_i(theta), +-b M)`` plus the public part, from all records.

        NaN, without a look at the records, where both log-priors are infinite: there is no ratio.
        """
        if math.isnan(move.prior):
            return math.nan
        bound = self.clip_bound * move.distance
        change = self.likelihood.clipped_change(move.new.theta, move.old.theta, bound)
        return self.temperature * change + move.prior

    def decide(self, rule: AcceptanceRule, log_ratio: float) -> bool:
        """Draw the decision from secret bits; reject where there is no ratio."""
        return not math.isnan(log_ratio) and decide(rule, log_ratio, self._bits)

    def choose(
        self, move: Move, rule: AcceptanceRule, log_ratio: float
    ) -> tuple[np.ndarray, bool, float]:
        """Accept or reject a move: one secret Bernoulli draw. Returns what :meth:`~pymc_dp.steps.DPStep.transition` returns."""
        accepted = self.decide(rule, log_ratio)
        if accepted:
            self._current = move.new
        self.likelihood.forget(but=(move.new if accepted else move.old).theta)
        return (move.new if accepted else move.old).theta, accepted, move.distance


class ProposalStep(AcceptRejectStep):
    """Base class of steps with a symmetric proposal that does not depend on the data.

    Parameters
    ----------
    proposal : Proposal
        Law of the proposed moves: :class:`~pymc_dp.RandomWalk`, :class:`~pymc_dp.OneComponent` or
        :class:`~pymc_dp.GuidedWalk`.
    **options
        See :class:`AcceptRejectStep`.

    Examples
    --------
    >>> class MyStep(dp.steps.ProposalStep):
    ...     def transition(self, theta):
    ...         move = self.propose(theta)
    ...         decision = self.charge_decision(move)
    ...         return self.choose(move, decision.rule, self.log_ratio(move))
    """

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        proposal: Proposal,
        **options: Unpack[DecisionOptions],
    ):
        if isinstance(proposal, type) or not isinstance(proposal, Proposal):
            raise TypeError(
                f"proposal must be one such as RandomWalk(0.01), got a {type(proposal).__name__}."
            )
        super().__init__(vars, **options)
        self.proposal = proposal
        self._walk = proposal.start(len(self.part))

    @classmethod
    def plan(cls, problem: Any) -> dict[str, Iterable[Any]]:
        """Values of arguments that :func:`~pymc_dp.plan` tries on simulated records, in order of the cost of a draw."""
        return {"proposal": problem.random_walks, "laziness": (0.125, 0.25, 0.5, 1.0)}

    def typical_distances(self) -> tuple[float, ...]:
        """Distances of proposals, drawn from their public law: to plan with, never to charge."""
        walk, rng = copy.copy(self._walk), np.random.default_rng(0)
        origin = np.zeros(len(self.part))
        return tuple(walk.propose(origin, rng)[1] for _ in range(PLANNING_DRAWS))

    def _reset_chain(self) -> None:
        super()._reset_chain()
        if hasattr(self, "proposal"):
            self._walk = self.proposal.start(len(self.part))

    def propose(self, theta: np.ndarray) -> Move:
        """Draw a move from ``theta``: public and symmetric."""
        moved, distance = self._walk.propose(theta[self.part], self.rng)
        proposed = theta.copy()
        proposed[self.part] = moved
        old, new = self.current(theta), State(proposed, self.likelihood.log_prior(proposed))
        return Move(old, new, new.prior - old.prior, distance)

    def choose(
        self, move: Move, rule: AcceptanceRule, log_ratio: float
    ) -> tuple[np.ndarray, bool, float]:
        """Accept or reject a move, and report the outcome to the proposal."""
        theta, accepted, distance = super().choose(move, rule, log_ratio)
        self._walk.decided(accepted)
        return theta, accepted, distance

    def changes(self, move: Move, index: np.ndarray) -> np.ndarray:
        """Clipped changes of the log-likelihoods of some records, not tempered."""
        new, old = self.likelihood.logp_at(np.array((move.new.theta, move.old.theta)), index)
        return clipped_changes(new, old, self.clip_bound * move.distance)

    def compile_batches(self) -> None:
        """Compile in this process what would otherwise be compiled in every worker."""
        theta = np.zeros(self.likelihood.n_dim)
        self.likelihood.rehearsal.logp_at(theta, np.zeros(1, dtype=int))


class BatchStep(ProposalStep):
    r"""Base class of steps that may decide from a batch of fixed size, drawn without replacement.

    With ``r_i`` the clipped changes of the ``m`` records drawn and ``k = N T / m``, the log-ratio is
    estimated by ``k sum r`` plus the public part, and the variance of its error by

    .. math:: v = k^2\, \frac{N - m}{N - 1} \Big( \sum_B r_i^2 - \frac{(\sum_B r_i)^2}{m} \Big).

    Replacing one record of the batch changes the estimate by at most ``2 k b M``. It changes ``v``
    by at most ``4 (k b M)**2 (N - m) / (N - 1) (m - 1) / m``: replacing one of ``m`` values in ``[-c,
    c]`` changes their sum of squared deviations by at most ``4 c**2 (m - 1) / m``.

    Parameters
    ----------
    batch_size : int, optional
        Records per iteration ``m``, from 2 on, drawn without replacement with secret randomness;
        all by default. The time of an iteration is proportional to it.
    **options
        See :class:`ProposalStep`.
    """

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        batch_size: int | None = None,
        **options: Unpack[ProposalOptions],
    ):
        super().__init__(vars, **options)
        self.batch_size = as_batch_size(batch_size, 2, self.likelihood.n_records)
        if self.batch_size is not None:
            self.compile_batches()

    def _batch(self) -> int:
        """Number of records per decision."""
        return self.likelihood.n_records if self.batch_size is None else self.batch_size

    @property
    def sampling_probability(self) -> float:
        """Probability that a record is in the batch; 1 if all records decide."""
        return self._batch() / self.likelihood.n_records

    def estimated_log_ratio(self, move: Move) -> tuple[float, float]:
        """Log-ratio estimated from a new batch, and the estimated variance of its error."""
        if math.isnan(move.prior):
            return math.nan, 0.0  # without a look at the records, as in log_ratio()
        n, m = self.likelihood.n_records, self._batch()
        r = self.changes(move, without_replacement(n, m, self._bits))
        total, scale = float(r.sum()), n * self.temperature / m
        squares = max(0.0, float(r @ r) - total**2 / m)
        return scale * total + move.prior, scale**2 * (n - m) / (n - 1) * squares

    def _batch_decisions(
        self,
        rule: AcceptanceRule | None,
        noise_multiplier: float | None,
        slopes: tuple[float, float],
    ) -> PerProposalDecision | None:
        """Cost of decisions; on batches ``slopes`` bound how the log-odds change with the estimate and its variance."""
        batch = {}
        if self.batch_size is not None:
            n, m = self.likelihood.n_records, self.batch_size
            largest = n * self.temperature * self.clip_bound / m
            variance = 4 * largest**2 * (n - m) / (n - 1) * (m - 1) / m
            batch = {
                "sensitivity_per_distance": slopes[0] * 2 * largest,
                "sensitivity_per_square": slopes[1] * variance,
                "sampling_probability": self.sampling_probability,
            }
        return self._decisions(rule, noise_multiplier, self.typical_distances(), **batch)


def follows_sensitivity(
    name: str, value: Any, noise_multiplier: float | None, clip_bound: float
) -> bool:
    """Whether the penalty rule's noise is proportional to the sensitivity; ValueError if arguments conflict."""
    if noise_multiplier is None:
        return False
    if value is not None:
        raise ValueError(f"Give {name} or noise_multiplier, not both.")
    if as_float(clip_bound) == math.inf:
        raise ValueError("noise_multiplier needs a finite clip_bound.")
    return True
