"""What samplers share that let the data accept or reject, and those of them that propose blindly."""

from __future__ import annotations

import copy
import math

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp.acceptance import AcceptanceRule
from pymc_dp.model.clipping import clipped_changes
from pymc_dp.privacy.batches import without_replacement
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import Family
from pymc_dp.privacy.mechanisms import Mechanism, real, whole
from pymc_dp.privacy.noise import decide
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.gradients import check_clip_bound
from pymc_dp.steps.proposals import Proposal

__all__ = ["AcceptRejectStep", "DecidingStep", "Move", "State"]

#: Draws from the proposal's public law, used to plan.
_PLANNING_DRAWS = 2000


@dataclass
class State:
    """A state with its log-prior and, once the data were looked at, what was found there.

    Parameters
    ----------
    theta : array of shape (n_dim,)
        Where it is.
    prior : float
        Log-prior.
    records : array of shape (n_records,), optional
        Log-likelihood of each record: private.
    gradient : array, optional
        Noisy gradient, which is released: only for samplers that use it.
    """

    theta: np.ndarray
    prior: float
    records: np.ndarray | None = None
    gradient: np.ndarray | None = None


@dataclass
class Move:
    """A proposal: both states, what the prior says of it, and its public distance.

    Parameters
    ----------
    old, new : state
        Where it begins and ends.
    prior : float
        Change of the log-prior; infinite or not a number at the edge of the prior.
    distance : float
        ``M(theta, theta')``.
    """

    old: State
    new: State
    prior: float
    distance: float


class DecidingStep(DPStep):
    """Base class of steps that make one decision per iteration, from the clipped log-ratio of a move.

    A subclass sets :attr:`family`, what a decision costs, and calls :meth:`_register` when it is
    complete.

    Parameters
    ----------
    vars, budget, records, reproducible, model, blocked, rng, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.
    clip_bound : float
        Most that one record's log-likelihood may change per unit of the proposal's distance.
    laziness : float
        Weight of the lazy rule, in (0, 1].
    temperature : float
        Power of the likelihood, in (0, 1].
    """

    settled = (*DPStep.settled, "clip_bound", "temperature", "laziness", "family")
    #: What a decision costs, following the distance; None without a finite cost.
    family: Family | None

    def __init__(
        self,
        vars: Sequence[Any] | None,
        *,
        budget: PrivacyBudget | None,
        clip_bound: float,
        laziness: float,
        temperature: float,
        **options: Any,
    ):
        check_clip_bound(
            "clip_bound", clip_bound, budget is not None, "without it one record could decide everything. "
            "It bounds the change of one record's log-likelihood per unit of the proposal's distance.",
        )  # fmt: skip
        if not 0 < real(laziness) <= 1:
            raise ValueError(f"laziness must lie in (0, 1], got {laziness!r}.")
        if not 0 < real(temperature) <= 1:
            raise ValueError(f"temperature must lie in (0, 1], got {temperature!r}.")
        super().__init__(vars, budget=budget, **options)
        self.clip_bound, self.temperature, self.laziness = (
            float(clip_bound),
            float(temperature),
            float(laziness),
        )

    def mechanisms(self) -> tuple[tuple[Mechanism, int], ...]:
        """One decision per iteration; its cost follows the public distance of the proposal."""
        return () if self.family is None else ((self.family, 1),)

    def _reset_chain(self) -> None:
        super()._reset_chain()
        self._current: State | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_current": None}  # private, and of one chain only

    def current(self, theta: np.ndarray) -> State:
        """Return what is known of a state: nothing, if another step has moved other variables since."""
        if self._current is None or self._current.theta.tobytes() != theta.tobytes():
            self._current = State(theta, self.likelihood.log_prior(theta))
        return self._current

    def settle(self, move: Move) -> bool:
        """Charge for the decision on a move, make it, and go there if it is accepted."""
        decision = None
        if self.family is not None:
            offset = abs(move.prior) if math.isfinite(move.prior) else 0.0
            decision = self.family.at(move.distance, offset)
            self.charge(((decision, 1),))
        # No ratio exists where both priors vanish, a public fact: stay.
        accepted = not math.isnan(move.prior) and self.accept(move, decision)
        if accepted:
            self._current = move.new
        return accepted

    @abstractmethod
    def accept(self, move: Move, decision: Any) -> bool:
        """Decide on a proposal for which `decision`, a mechanism of the family, has been charged."""

    def decide(self, rule: AcceptanceRule, log_ratio: float) -> bool:
        """Draw the decision; stay where there is no ratio, which can only be without clipping."""
        return not math.isnan(log_ratio) and decide(rule, log_ratio, self._bits)

    def log_ratio(self, move: Move) -> float:
        """Log-ratio from all records, clipped and tempered, with the prior; those of the current state are kept."""
        new, old = self._records(move.new), self._records(move.old)
        change = self.likelihood.clipped_sum(new, old, self.clip_bound * move.distance)
        return self.temperature * change + move.prior

    def _records(self, state: State) -> np.ndarray:
        if state.records is None:
            state.records = self.likelihood.logp(state.theta)
        return state.records


class AcceptRejectStep(DecidingStep):
    """Base class of steps with blind, symmetric proposals.

    A subclass sets :attr:`family`, what a decision costs, calls :meth:`_register` when it is
    complete, and writes :meth:`accept`.

    Parameters
    ----------
    vars, budget, records, reproducible, model, blocked, rng, compile_kwargs
        See :class:`~pymc_dp.steps.base.DPStep`.
    clip_bound, laziness, temperature
        See :class:`DecidingStep`.
    proposal : Proposal
        Where to go; blind to the data.
    batch_size : int, optional
        Records per decision, drawn without replacement; all by default.
    """

    settled = (*DecidingStep.settled, "proposal", "batch_size")

    def __init__(
        self,
        vars: Sequence[Any] | None,
        *,
        proposal: Proposal,
        batch_size: int | None = None,
        **options: Any,
    ):
        if isinstance(proposal, type) or not isinstance(proposal, Proposal):
            raise TypeError(
                f"proposal must be one such as RandomWalk(0.01), got a {type(proposal).__name__}."
            )
        super().__init__(vars, **options)
        self.batch_size = self._checked_batch(batch_size)
        self.proposal = proposal
        self._walk = proposal.start(len(self.part))
        if self.batch_size is not None:
            self._compile_batches()

    def _checked_batch(self, batch_size: int | None) -> int | None:
        if batch_size is None:
            return None
        n_records = self.likelihood.n_records
        size = whole("batch_size", batch_size)
        if not 2 <= size <= n_records:
            raise ValueError(
                f"batch_size must be from 2 to the number of records, {n_records}, got {batch_size!r}."
            )
        return None if size == n_records else size

    def _compile_batches(self) -> None:
        """Compile now what would else be compiled in every worker."""
        self.likelihood.logp_at(np.zeros(self.likelihood.n_dim), np.zeros(1, dtype=int))

    def _typical_distances(self) -> tuple[float, ...]:
        walk, rng, origin = (
            copy.copy(self._walk),
            np.random.default_rng(0),
            np.zeros(len(self.part)),
        )
        return tuple(walk.propose(origin, rng)[1] for _ in range(_PLANNING_DRAWS))

    def _reset_chain(self) -> None:
        super()._reset_chain()
        if hasattr(self, "proposal"):
            self._walk = self.proposal.start(len(self.part))

    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """Propose, charge, decide."""
        moved, distance = self._walk.propose(theta[self.part], self.rng)
        proposed = theta.copy()
        proposed[self.part] = moved
        old, new = self.current(theta), State(proposed, self.likelihood.log_prior(proposed))
        accepted = self.settle(Move(old, new, new.prior - old.prior, distance))
        self._walk.decided(accepted)
        return (proposed if accepted else theta), accepted, distance

    def changes(self, move: Move, index: np.ndarray) -> np.ndarray:
        """Clipped changes of some records' log-likelihoods, not tempered."""
        new, old = self.likelihood.logp_at(np.array((move.new.theta, move.old.theta)), index)
        return clipped_changes(new, old, self.clip_bound * move.distance)

    # ------------------------------------------------------------------ batches without replacement

    def estimated_log_ratio(self, move: Move) -> tuple[float, float]:
        r"""Log-ratio estimated from a batch, and the estimated variance of its error.

        With ``r_i`` the clipped changes of the ``m`` records drawn and ``k = N T / m``: ``k sum r``
        and ``k**2 (N - m) / (N - 1) (sum r**2 - (sum r)**2 / m)``.
        """
        assert self.batch_size is not None
        n, m = self.likelihood.n_records, self.batch_size
        r = self.changes(move, without_replacement(n, m, self._bits))
        total, scale = float(r.sum()), n * self.temperature / m
        squares = max(0.0, float(r @ r) - total**2 / m)
        return scale * total + move.prior, scale**2 * (n - m) / (n - 1) * squares

    def _batch_sensitivities(self) -> tuple[float, float]:
        """What a record of the batch can do: to the estimate per distance, to the variance per square of it.

        Replacing one of ``m`` values in ``[-c, c]`` changes their sum of squared deviations by at
        most ``4 c**2 (m - 1) / m``.
        """
        assert self.batch_size is not None
        n, m = self.likelihood.n_records, self.batch_size
        largest = n * self.temperature * self.clip_bound / m
        return 2 * largest, 4 * largest**2 * (n - m) / (n - 1) * (m - 1) / m
