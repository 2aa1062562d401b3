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
from pymc_dp.scores.nuts import Nuts
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.second_moments import corrected_by
from pymc_dp.scores.sum_law import NormalSums, SumState, normal_sums

#: Iterations before the first draw of a chain: to forget the first state, and to adapt.
_WARMUP = 250


class DPScore(Shown, BlockedStep):
    r"""Posterior given noisy sums of clipped scores, which are jointly normal given the parameters.

    A few noisy sums of clipped scores (:func:`~pymc_dp.private_scores`) are all that was released. This step
    samples the posterior given them. Nothing private is accessed: draws,
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
    PyMC's NUTS moves the parameters. A chain begins with 250 iterations that adapt it and are not returned,
    so PyMC's own ``tune`` may be 0; ``initvals`` are not used. Statistics: those of NUTS (``diverging``,
    ``tree_depth``, ``step_size``, ``energy``, ``lp``, ``acceptance_rate``, ...), and
    ``reference_distance`` from the mode of the posterior, in standard deviations of its normal approximation: root mean
    square over the parameters with scores, about 1.

    The density, and its error, of order ``1 / sqrt(n_records)``: :mod:`pymc_dp.scores.sum_law`. It takes the
    same time for any number of records.

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
        note("compiling the posterior given the scores")
        rng = np.random.default_rng(0)  # public; the same approximation for all chains
        with quiet_compilers():
            self._target = normal_sums(simulator, scores, rng)
        self.approximation = self._target.approximation
        self.set_rng(rng)

    def set_rng(self, rng: Any) -> None:
        """Start a chain (PyMC 5)."""
        self.rng = get_random_generator(rng, copy=False)
        self._nuts: Nuts | None = None

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain (PyMC 6)."""
        self.set_rng(rng)

    def step(self, point: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict]]:
        """One iteration; the first one of a chain warms up before."""
        stats = self._move()
        theta = self._target.state(self._position).theta
        stats["reference_distance"] = self.approximation.distance(theta)
        return self.simulator.likelihood.unravel(theta), [stats]

    def states(self, random_seed: Any = None) -> Iterator[SumState]:
        """Parameters and variances of the noise in a new chain, without end."""
        self.set_rng(np.random.default_rng(random_seed))
        while True:
            self._move()
            yield self._target.state(self._position)

    @property
    def target(self) -> NormalSums:
        """The density that is sampled."""
        return self._target

    def _move(self) -> dict[str, Any]:
        """Move the parameters and the variances of l2 noise; returns statistics. The first move of a chain warms up before."""
        if self._nuts is None:
            self._position = self._target.first(self.rng)
            self._nuts = Nuts(self._target.log_density, *self._target.standard, self.rng)
            for _ in range(_WARMUP):
                self._move()
            self._nuts.stop_tuning()
        self._position, stats = self._nuts.move(self._position)
        return stats
