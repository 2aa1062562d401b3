"""Steps run without a budget on records drawn from the model: what to expect of their settings on the private ones."""

from __future__ import annotations

import copy
import math

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.model.sums.exact_sums import clipped_changes
from pymc_dp.planning.local_information import local_information
from pymc_dp.planning.plan import MIN_DRAWS, Candidate, Forecast
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Mechanism
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalCost
from pymc_dp.steps.accept_reject import Move
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.proposals import RandomWalk

#: Draws of the posterior, from each of which a candidate makes one iteration.
_N_DRAWS = 48
#: Rounds and iterations of the chain that is run if the posterior is not approximately normal.
_ROUNDS, N_CHAIN = 8, 2000
#: Largest number of simulated records that are evaluated, and of positions at which they are kept.
_MAX_RECORDS, _KEPT = 20_000, 4 * _N_DRAWS
#: Clip bounds: quantiles of the changes of simulated records per unit of distance.
_QUANTILES = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.9995, 0.9998, 0.9999, 1.0)
#: How often each argument moves, given the values of the others.
_SWEEPS = 2
#: Errors up to so many times the least are as good: forecasts are not more accurate.
_EQUAL = 1.05
#: Fewer effective draws than this are reported.
_FEW_EFFECTIVE = 30


class SimulatedLikelihood:
    """`Likelihood` of one data set drawn from the model, whose records count for as many as there are private ones."""

    def __init__(self, simulator: Simulator, theta: np.ndarray, rng: np.random.Generator) -> None:
        private, self._simulated = simulator.likelihood, simulator.simulated
        self.n_records, self.n_dim, self.slices = simulator.n_records, private.n_dim, private.slices
        self.ravel, self.unravel, self.log_prior = private.ravel, private.unravel, private.log_prior
        self.model_token, self.by_position = private.model_token, private.by_position
        self._data = self._simulated.draw(theta, rng)
        few = self._simulated.n_records > _MAX_RECORDS
        self._some = self._simulated.some(_MAX_RECORDS, rng) if few else None
        self._logp = lru_cache(maxsize=_KEPT)(self._compute)

    def _compute(self, position: bytes) -> np.ndarray:
        return self._simulated.logp(np.frombuffer(position), self._data, self._some)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of the log-likelihood of all records."""
        return self.n_records * self._simulated.gradients(theta, self._data, self._some).mean(axis=0)  # fmt: skip

    def changes(self, new: np.ndarray, old: np.ndarray, bound: float = math.inf) -> np.ndarray:
        """Clipped change of the log-likelihood of each record that is evaluated."""
        return clipped_changes(self._logp(new.tobytes()), self._logp(old.tobytes()), bound)

    def clipped_change(self, new: np.ndarray, old: np.ndarray, bound: float) -> float:
        """Their sum, for all records."""
        return self.n_records * float(self.changes(new, old, bound).mean())

    def logp_at(self, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Log-likelihoods of some records: those that are evaluated, in turn."""
        logp = np.array([self._logp(point.tobytes()) for point in np.atleast_2d(theta)])
        return logp[:, index % logp.shape[1]].reshape(*theta.shape[:-1], len(index))

    @property
    def rehearsal(self) -> SimulatedLikelihood:
        """Itself: it has no private records."""
        return self

    def forget(self, but: np.ndarray | None = None) -> None:
        """Keep what other candidates need."""

    def check_reachable(self) -> None:
        """Nothing to check: the records are here."""


class PlanningProblem:
    """A budget, and the posterior of simulated records: what `Step.plan` chooses values of arguments for."""

    #: Root mean square lengths of moves to try, in posterior standard deviations.
    lengths = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0)

    def __init__(
        self, budget: PrivacyBudget, simulator: Simulator, theta: np.ndarray, other_accesses: Accesses, max_draws: int,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self._model, self._temperature = simulator.model, simulator.temperature
        #: A copy, with which steps register what they would access.
        self.budget, self._left = copy.copy(budget), budget.left(other_accesses)
        self.max_draws = max_draws
        self.notes: list[str] = []
        self.likelihood = SimulatedLikelihood(simulator, theta, rng)
        #: Covariance of the posterior, shape ``(n_dim, n_dim)``.
        self.covariance = np.linalg.inv(local_information(simulator, theta, rng).precision)
        force = self._temperature * self.likelihood.gradient(theta)
        mode = theta + self.covariance @ (force + simulator.likelihood.grad_log_prior(theta))
        z = rng.standard_normal((_N_DRAWS, len(theta)))
        self._draws = mode + z @ np.linalg.cholesky(self.covariance).T
        logs = np.array([self._target(x, theta) for x in self._draws]) + (z**2).sum(axis=1) / 2
        weights = np.exp(logs - logs.max())
        if weights.sum() ** 2 / (weights**2).sum() < _N_DRAWS / 3:
            chain = self._chain(theta, rng)
            self._draws = chain[rng.integers(len(chain), size=_N_DRAWS)]
            self.notes.append(
                "the posterior is not approximately normal: the plan uses a short chain on simulated records."
            )
        self._root = np.linalg.cholesky(self.covariance)
        self._seed = int(rng.integers(2**32))
        self._bounds: dict[Any, np.ndarray] = {}
        #: Random walks of these lengths with the covariance of the posterior, and what tables show of them.
        self.random_walks: dict[Any, dict[str, Any]] = {
            RandomWalk(self.covariance * x**2 / len(theta), metric="proposal"): {"length": x}
            for x in self.lengths
        }

    def _target(self, theta: np.ndarray, origin: np.ndarray) -> float:
        """Log-density of the posterior, up to a constant."""
        change = self.likelihood.clipped_change(theta, origin, math.inf)
        return self._temperature * change + self.likelihood.log_prior(theta)

    def _chain(self, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Second half of a Metropolis chain, whose proposals adapt from round to round."""
        scale, local, chain = 2.4**2 / len(theta), self.covariance, [theta]
        point = self.likelihood.unravel(theta)
        for _ in range(_ROUNDS):
            walk = RandomWalk(scale * self.covariance)
            settings = {"proposal": walk, "clip_bound": math.inf, "noise_scale": 0}
            step = self._build(DPPenalty, None, settings, int(rng.integers(2**32)))
            for _ in range(N_CHAIN // _ROUNDS):
                point, _ = step.step(point)
                chain.append(self.likelihood.ravel(point))
            recent = np.array(chain[len(chain) // 2 :])
            scale *= math.exp(4 * (np.any(np.diff(recent, axis=0), axis=1).mean() - 0.25))
            self.covariance = np.cov(recent.T).reshape(local.shape) + 1e-3 * local
        return recent

    def _build(
        self, step: Any, budget: PrivacyBudget | None, settings: Mapping[str, Any], seed: int = 0
    ) -> Any:
        settings = {"temperature": self._temperature, **settings}
        return step(
            budget=budget, model=self._model, likelihood=self.likelihood, rng=seed, reproducible=True, **settings
        )  # fmt: skip

    def _decisions(self, step: Any, settings: Mapping[str, Any]) -> list[tuple[Move, float]]:
        """Moves of one iteration from each draw of the posterior, with the probabilities to accept them."""
        run = self._build(step, None, settings, self._seed)
        found: list[tuple[Move, float]] = []

        def choose(move: Move, rule: Any, log_ratio: float) -> tuple[np.ndarray, bool, float]:
            found.append((move, 0.0 if math.isnan(log_ratio) else rule.probability(log_ratio)))
            return move.old.theta, False, move.distance

        run.choose = choose
        for theta in self._draws:
            run.step(self.likelihood.unravel(theta))
        return found

    def _settings(self, step: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments with these values, of which the clip bound is given as a quantile."""
        others = {name: value for name, value in values.items() if name != "clip_bound"}
        key = others.get("proposal", tuple(others.values()))
        if key not in self._bounds:
            moves = [move for move, _ in self._decisions(step, others | {"clip_bound": 1.0})]
            changes = [self.likelihood.changes(m.new.theta, m.old.theta) / m.distance for m in moves]  # fmt: skip
            self._bounds[key] = np.quantile(np.abs(np.nan_to_num(changes)), _QUANTILES)
        bound = float(self._bounds[key][_QUANTILES.index(values["clip_bound"])])
        bound = max(bound, np.finfo(float).tiny)
        return others | {"clip_bound": bound, "temperature": self._temperature}

    def _draws_paid(self, accesses: Accesses) -> float:
        """Draws per chain that the budget pays for."""
        adaptive = self.budget.terms.adaptive
        price = sum(count * m.mean_price(adaptive.price) for m, count in accesses)
        if price == math.inf and adaptive.order is None:
            raise ValueError(
                "The accountant 'gaussian' has no bound for the batches of this step: use 'best' or 'rdp'."
            )
        return min(self.max_draws, self._left / price / self.budget.chains)

    def _candidate(
        self, step: Any, values: Mapping[str, Any], *, exactly: bool = False
    ) -> Candidate:
        """What is expected of these values; exactly: with prices at all distances, not at a typical one.

        Successive draws are as those of an AR(1) process: its coefficient is 1 minus half the mean squared distance in
        each direction, in posterior standard deviations. Clipping shifts a posterior mean by the slope of what it
        removes from log-ratios: the expected square over data sets is the square of the mean slope, estimated without
        bias, plus its variance.
        """
        settings, n = self._settings(step, values), self.likelihood.n_records
        accesses = self._build(step, self.budget, settings).mechanisms()
        moves, probabilities = zip(*self._decisions(step, settings), strict=True)
        ends = [(move.new.theta, move.old.theta) for move in moves]
        distances = np.array([move.distance for move in moves])
        jumps = np.linalg.solve(self._root, np.array([new - old for new, old in ends]).T)
        # The law of the distances is known.
        typical = np.mean(np.square(getattr(accesses[0][0], "distances", distances)))
        squares = probabilities @ (jumps**2).sum(axis=0) / np.sum(distances**2) * typical
        decay = min(1.0, squares / (2 * len(jumps)))
        draws = self._draws_paid(accesses if exactly else [(_typical(m), k) for m, k in accesses])
        effective = self.budget.chains * draws * decay / (2 - decay)
        bounds = settings["clip_bound"] * distances
        with np.errstate(over="ignore", invalid="ignore"):  # where a likelihood is zero
            removed = np.array([
                self.likelihood.changes(*both, bound) - self.likelihood.changes(*both)
                for both, bound in zip(ends, bounds, strict=True)
            ])  # fmt: skip
            clipped = np.mean(np.abs(removed) > 1e-6 * bounds[:, None])
            slopes = self._temperature * np.linalg.pinv(jumps.T) @ np.nan_to_num(removed)
            variances = slopes.var(axis=1)
            shifts = np.maximum(0.0, slopes.mean(axis=1) ** 2 - variances / slopes.shape[1])
            square = np.mean(n**2 * shifts + n * variances)
        bias = math.sqrt(square) if np.isfinite(square) else math.inf
        shown = {k: x for k, x in settings.items() if k not in ("proposal", "temperature")}
        shown = self.random_walks.get(settings.get("proposal"), {}) | shown
        return Candidate(shown, Forecast(draws, effective, float(clipped), bias))

    def search(self, step: Any) -> tuple[list[Candidate], Candidate, dict[str, Any]]:
        """All candidates, the chosen one, and its arguments: from their middle values arguments move while errors fall.

        Values are in order of the cost of a draw.
        """
        # First the clip bound, with proposals that do not reach the largest number of draws.
        choices = {"clip_bound": _QUANTILES} | {k: tuple(x) for k, x in step.plan(self).items()}
        tried: dict[tuple[int, ...], Candidate] = {}

        def at(point: tuple[int, ...]) -> dict[str, Any]:
            return {name: x[i] for i, (name, x) in zip(point, choices.items(), strict=True)}

        def error(point: tuple[int, ...]) -> float:
            if not all(0 <= i < len(x) for i, x in zip(point, choices.values(), strict=True)):
                return math.inf
            if point not in tried:
                tried[point] = self._candidate(step, at(point))
            return tried[point].forecast.error

        point = tuple(len(x) // 2 for x in choices.values())
        unit = np.eye(len(choices), dtype=int)
        # A step in two arguments: the cost of a draw falls by one and grows by the other.
        ways = np.concatenate([2 * unit, unit, unit - np.roll(unit, 1, axis=0)])
        for way in [*np.stack([ways, -ways], axis=1).reshape(-1, len(unit))] * _SWEEPS:
            while error(moved := tuple(np.add(point, way).tolist())) < error(point):
                point = moved
        paid = {point: c for point, c in tried.items() if c.forecast.draws >= MIN_DRAWS}
        if not paid:
            raise PrivacyBudgetExhausted(
                f"epsilon = {self.budget.epsilon:g} at delta = {self.budget.delta:g} does not pay for ten draws in each of "
                f"{self.budget.chains} chain(s) on {self.likelihood.n_records} records. Use fewer chains or a larger epsilon."
            )
        rough = chosen(paid.values())
        values = at(next(point for point, candidate in paid.items() if candidate is rough))
        best = self._candidate(step, values, exactly=True)
        effective = best.forecast.effective_draws
        if effective < _FEW_EFFECTIVE:
            self.notes.append(
                f"about {effective:.0f} effective draws are few: intervals will be rough. More records, a larger epsilon, fewer "
                "parameters or fewer chains would help."
            )
        candidates = [best if candidate is rough else candidate for candidate in paid.values()]
        return candidates, best, self._settings(step, values)


def _typical(mechanism: Mechanism) -> Mechanism:
    """The access at the root mean square of the distances, to compare candidates: costs grow about as squares."""
    if isinstance(mechanism, PerProposalCost):
        return mechanism.at(math.sqrt(np.mean(np.square(mechanism.distances))))
    return mechanism


def chosen(candidates: Iterable[Candidate]) -> Candidate:
    """The candidate that clips fewest records, and so depends least on the model, among those of nearly least error."""
    candidates = list(candidates)
    least = min(candidate.forecast.error for candidate in candidates)
    equal = [c for c in candidates if c.forecast.error <= _EQUAL * least]
    return min(equal, key=lambda c: (c.forecast.clipped, c.forecast.error))
