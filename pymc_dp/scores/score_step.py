"""DPScore: the posterior given noisy sums of clipped scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pymc as pm

from pymc.model import modelcontext
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.util import get_random_generator, get_value_vars_from_user_vars

from pymc_dp.display import Shown
from pymc_dp.model.graphs.compiling import quiet_compilers
from pymc_dp.model.proper_priors import check_proper
from pymc_dp.planning.compiled_once import simulator_of
from pymc_dp.planning.simulator import Simulator
from pymc_dp.progress import note
from pymc_dp.scores.latent_posterior import LatentPosterior, LatentState, Walk
from pymc_dp.scores.linearized import NormalPosterior, normal_posterior
from pymc_dp.scores.nuts import Nuts
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_features import ScoreFeatures
from pymc_dp.scores.second_moments import corrected_by
from pymc_dp.scores.sum_law import NormalSums, SumState

#: Number of records above which the sums are taken to be normal.
MANY_RECORDS = 20_000
#: The same with a stand-in whose errors are known: with ``"records"`` these are moved apart from the parameters, and slowly where
#: they exceed the noise.
_MANY_WITH_ERRORS = 300
#: Iterations before the first draw of a chain: to forget the first state, and to adapt.
_WARMUP = (50, 50, 100, 200)
#: Moves of parameters and records together in each iteration, if they are ever accepted.
_N_BOTH = 3
_LEAST_ACCEPTANCE = 0.01
#: First states of chains are this much wider than the posterior, so that R-hat can see a failure.
_OVERDISPERSION = 1.5
_MAX_TRIES = 20


class DPScore(Shown, BlockedStep):
    r"""Exact posterior given noisy sums of clipped scores, by data augmentation.

    A few noisy sums of clipped scores (:func:`~pymc_dp.private_scores`) are all that was released. This step
    samples the posterior given them; the records are latent variables. Nothing private is accessed: draws,
    chains and tuning are free, and no callback is needed.

    Clipping and noise are part of the model of the releases, so they widen the posterior and do not shift it,
    if the model is right. (If it is not, the posterior is that of a robust estimator: the tighter the clip
    bound, the more.)

    Parameters
    ----------
    scores : PrivateScores
        What was released. :meth:`PrivateScores.load` reads it from a file.
    simulator : Simulator, optional
        The model and how its records are simulated; by default a new one with `covariates`.
    covariates : "public" or pm.Model, optional
        How records are simulated if the model has covariates: ``"public"`` for its own, or a model of the same
        parameters with a stand-in for them. Whoever has no data gives the stand-in as model, with ``"public"``.
    method : {"auto", "records", "normal"}
        ``"records"`` augments by all records; an iteration takes about 0.1 to 0.4 microseconds for each of
        them. ``"normal"`` takes the sums without noise to be normally distributed, an error of order
        ``1 / sqrt(n_records)``, and takes the same time for any number of records. By default ``"normal"``
        above 20 000 records, above 300 with a stand-in that was made from ranges, and if the simulator has a
        temperature below 1.
    model : pm.Model, optional
        The model, by default that of the simulator, or the one on the context stack.
    vars, blocked, rng
        Set by PyMC: the step updates all variables.

    Raises
    ------
    ValueError
        If the model has other parameters than the scores, or another likelihood, or an argument is out of range.
    UnsupportedModel
        If a prior is improper.

    Notes
    -----
    PyMC's NUTS moves the parameters. A chain begins with 400 iterations that adapt it and are not returned,
    so PyMC's own ``tune`` may be 0; ``initvals`` are not used. Statistics: those of NUTS (``diverging``,
    ``tree_depth``, ``step_size``, ``energy``, ``lp``, ``acceptance_rate``, ...), ``record_acceptance_rate`` and
    ``both_acceptance_rate`` of moves of parameters and records together (method ``"records"``, else NaN), and
    ``reference_distance`` from the mean of the posterior that the scores' reference gives in normal
    approximation, in its standard deviations: root mean square over the parameters with scores, about 1.

    The moves, and why they leave the posterior invariant: :mod:`pymc_dp.scores.latent_posterior`;
    :mod:`pymc_dp.scores.sum_law` for many records.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> rng = np.random.default_rng(1)
    >>> y = rng.poisson(3.0, size=300)
    >>> with pm.Model():
    ...     rate = pm.Gamma("rate", 2.0, 1.0)
    ...     _ = pm.Poisson("y", rate, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=1)
    ...     scores = dp.private_scores(budget=budget)
    ...     idata = pm.sample(step=dp.DPScore(scores))  # doctest: +SKIP
    """

    name = "dp_score"
    default_blocked = True
    default_tune_steps = 0
    stats_dtypes_shapes: dict[str, tuple[Any, list]] = {
        "acceptance_rate": (np.float64, []),
        "diverging": (bool, []),
        "energy": (np.float64, []),
        "lp": (np.float64, []),
        "n_steps": (np.float64, []),
        "reached_max_treedepth": (bool, []),
        "step_size": (np.float64, []),
        "tree_depth": (np.int64, []),
        "record_acceptance_rate": (np.float64, []),
        "both_acceptance_rate": (np.float64, []),
        "reference_distance": (np.float64, []),
    }
    _state_class = StepMethodState

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Take the model from the simulator, if given."""
        if (simulator := kwargs.get("simulator")) is not None:
            kwargs["model"] = simulator.model
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        scores: PrivateScores,
        *,
        simulator: Simulator | None = None,
        covariates: str | pm.Model | None = None,
        method: str = "auto",
        model: Any = None,
        vars: Sequence[Any] | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        if not isinstance(scores, PrivateScores):
            raise TypeError(f"scores must be PrivateScores, as private_scores() returns them, got a {type(scores).__name__}.")  # fmt: skip
        if simulator is not None and covariates is not None:
            raise TypeError("covariates are those of the simulator: leave out, or leave out simulator=.")  # fmt: skip
        if simulator is not None and model not in (None, simulator.model):
            raise ValueError("model= is another model than that of the simulator: leave out.")
        check_proper(modelcontext(model) if simulator is None else simulator.model)
        if simulator is None:
            simulator = simulator_of(modelcontext(model), covariates=covariates)
        simulator = corrected_by(simulator, scores)
        model = simulator.model
        self.vars = list(model.value_vars)
        if vars is not None and set(get_value_vars_from_user_vars(vars, model)) != set(self.vars):
            raise ValueError("DPScore updates all variables of the model: leave out vars=.")
        self.blocked = True
        self.simulator, self.scores = simulator, scores
        self.method = _chosen(method, scores.n_records, simulator)
        note("compiling the posterior given the scores")
        self._features = ScoreFeatures(scores, simulator.simulated)
        rng = np.random.default_rng(0)  # public; the same approximation for all chains
        reference = scores.releases[-1].term.theta
        self.approximation = normal_posterior(
            simulator, self._features, reference, scores.n_records, rng
        )
        with quiet_compilers():
            self._target = self._make_target(rng)
        self.set_rng(rng)

    def _make_target(self, rng: np.random.Generator) -> LatentPosterior | NormalSums:
        simulator, approximation = self.simulator, self.approximation
        if self.method == "records":
            error = self._features.stand_in_error(approximation.mean, self.scores.n_records, rng)
            values, vectors = np.linalg.eigh(error)
            target = LatentPosterior(
                self._features,
                simulator.simulated,
                simulator.likelihood,
                self.scores.n_records,
                (vectors * np.sqrt(np.maximum(values, 0)))[:, values > 0],
            )
            target.compile(approximation.mean)
            return target
        root = np.linalg.cholesky(approximation.covariance)
        return NormalSums(
            self._features, simulator.simulated, simulator.likelihood, self.scores.n_records,
            simulator.temperature, approximation.mean, root, not approximation.information.all(), rng,
        )  # fmt: skip

    def set_rng(self, rng: Any) -> None:
        """Start a chain (PyMC 5)."""
        self.rng = get_random_generator(rng, copy=False)
        self._chain: _RecordsChain | _SumsChain | None = None

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain (PyMC 6)."""
        self.set_rng(rng)

    def step(self, point: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict]]:
        """One iteration; the first one of a chain warms up before."""
        if self._chain is None:
            self._chain = self._started()
        stats = self._chain.iterate()
        theta = self._chain.state.theta
        stats["reference_distance"] = self.approximation.distance(theta)
        return self.simulator.likelihood.unravel(theta), [stats]

    def states(self, random_seed: Any = None, thin: int = 1) -> Iterator[LatentState | SumState]:
        """States of a new chain, without end, each after `thin` iterations; valid until the next one.

        With method ``"records"`` they have the latent records, else the variances of the noise.
        """
        self.set_rng(np.random.default_rng(random_seed))
        chain = self._started()
        while True:
            for _ in range(thin):
                chain.iterate()
            yield chain.state

    @property
    def target(self) -> LatentPosterior | NormalSums:
        """The density that is sampled."""
        return self._target

    @property
    def features(self) -> ScoreFeatures:
        """Of the records, at the references of the scores."""
        return self._features

    def _started(self) -> _RecordsChain | _SumsChain:
        make = _RecordsChain if self.method == "records" else _SumsChain
        chain = make(self._target, self.approximation, self.rng)  # type: ignore[arg-type]
        chain.warm_up()
        return chain


def _chosen(method: str, n_records: int, simulator: Simulator) -> str:
    """The method, or the choice for "auto"; ValueError if it is unknown or not usable."""
    temperature = simulator.temperature
    if method not in ("auto", "records", "normal"):
        raise ValueError(f"method must be 'auto', 'records' or 'normal', got {method!r}.")
    if method == "auto":
        many = MANY_RECORDS if simulator.simulated.error is None else _MANY_WITH_ERRORS
        return "normal" if n_records > many or temperature < 1 else "records"
    if method == "records" and temperature < 1:
        raise ValueError(
            f"Records cannot be augmented at temperature {temperature:g}, as a tempered likelihood is no law of records: use method='normal'."
        )
    return method


class _RecordsChain:
    """A chain with latent records (data augmentation)."""

    def __init__(
        self, target: LatentPosterior, approximation: NormalPosterior, rng: np.random.Generator
    ) -> None:
        self._target, self._rng = target, rng
        self._walk = Walk(approximation.mean, np.linalg.cholesky(approximation.covariance))
        self._n_both = 1
        self.state: LatentState = _first(approximation, rng, lambda theta: target.draw(theta, rng))
        # Given the records, the posterior is that without privacy, wherever these are.
        root = np.linalg.cholesky(np.linalg.inv(approximation.precision))
        self._nuts = Nuts(
            lambda theta: target.log_density(theta, self.state),
            approximation.mean,
            root,
            rng,
            False,
        )

    def iterate(self) -> dict[str, Any]:
        """Each move once, cheap ones several times; returns statistics."""
        accepted = []
        for _ in range(self._n_both):
            self.state, was_accepted = self._target.update_both(self.state, self._walk, self._rng)
            accepted.append(was_accepted)
        self.state.theta, stats = self._nuts.move(self.state.theta)
        return stats | {
            "record_acceptance_rate": self._target.update_records(self.state, self._rng),
            "both_acceptance_rate": float(np.mean(accepted)) if accepted else np.nan,
        }

    def warm_up(self) -> None:
        """Iterate while step size and walk adapt; then fix both."""
        first, path = self._walk, []
        for length in _WARMUP:
            accepted = []
            for _ in range(length):
                accepted.append(self.iterate()["both_acceptance_rate"])
                path.append(self.state.theta)
            self._n_both = _N_BOTH if np.mean(accepted) > _LEAST_ACCEPTANCE else 1
            path = path[len(path) // 4 :]
            self._walk = _adapted(first, np.array(path))
        self._n_both = _N_BOTH if np.mean(accepted) > _LEAST_ACCEPTANCE else 0
        self._nuts.stop_tuning()


class _SumsChain:
    """A chain on normally distributed sums."""

    def __init__(
        self, target: NormalSums, approximation: NormalPosterior, rng: np.random.Generator
    ) -> None:
        self._target = target

        def first(theta: np.ndarray) -> np.ndarray | None:
            return target.position(theta) if target.is_possible(theta) else None

        self._position = _first(approximation, rng, first)
        self._nuts = Nuts(target.log_density, *target.standard, rng)

    @property
    def state(self) -> SumState:
        return self._target.state(self._position)

    def iterate(self) -> dict[str, Any]:
        """Move the parameters and the variances of l2 noise; returns statistics."""
        self._position, stats = self._nuts.move(self._position)
        return stats | {"record_acceptance_rate": np.nan, "both_acceptance_rate": np.nan}

    def warm_up(self) -> None:
        """Iterate while NUTS adapts."""
        for _ in range(sum(_WARMUP)):
            self.iterate()
        self._nuts.stop_tuning()


def _first(approximation: NormalPosterior, rng: np.random.Generator, make: Any) -> Any:
    """Initial state from a normal law wider than the posterior; nearer to its mean if records cannot be drawn there."""
    root = np.linalg.cholesky(approximation.covariance)
    width = _OVERDISPERSION
    for _ in range(_MAX_TRIES):
        theta = approximation.mean + width * root @ rng.standard_normal(len(root))
        if (state := make(theta)) is not None:
            return state
        width /= 1.5
    raise ValueError("Records cannot be drawn near the reference of the scores: check the model.")


def _adapted(walk: Walk, path: np.ndarray) -> Walk:
    """A walk with the mean and covariance of a path, weighted by its number of draws."""
    n, d = path.shape
    weight = n / (n + 10 * d)
    mean = weight * path.mean(axis=0) + (1 - weight) * walk.mean
    spread = np.cov(path, rowvar=False).reshape(d, d)
    covariance = weight * spread + (1 - weight) * walk.root @ walk.root.T
    return Walk(mean, np.linalg.cholesky(covariance))
