"""Data augmentation for inference from privatized data: the confidential records are latent variables."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from pymc.model import modelcontext
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.util import get_random_generator, get_value_vars_from_user_vars

from pymc_dp.arguments import as_positive_float
from pymc_dp.display import Shown
from pymc_dp.privatized.latent_records import LatentRecords, along

MAX_STORED = 10_000  # largest number of records whose acceptance is stored for each draw
MAX_START = 50  # sweeps that search for records which fit the release

PointType = dict[str, np.ndarray]


class PrivatizedRecords(Shown, BlockedStep):
    r"""Data augmentation for inference from a privatized release, where no record is known.

    The model describes the records and the release. Records are unobserved variables. The release is an
    observed variable, with a statistic of the records among its parameters; its distribution is the privacy
    mechanism, clamping included [1]_. This step draws the records given the parameters and the release. The
    parameters get other steps, NUTS by default. Together they sample the exact posterior, at no cost in
    privacy, as only the release is used.

    Parameters
    ----------
    vars : list of variables
        The records: free variables with a leading axis over records, which are independent given the
        parameters. They may be discrete, have further axes, and depend on each other within a record, as an
        outcome on predictors.
    contributions : str or list of str, optional
        Names of :class:`pymc.Deterministic` variables with a row for each record, whose sums over records enter
        the release. By default these sums are found in the graph: ``sum`` or ``mean`` over the leading axis,
        matrix products, and counts ``table[categories].inc(1)``. Only needed for other operations; an error
        then says so.
    epsilon : float, optional
        The guarantee of the release, if it is pure differential privacy under substitution of a record. Each
        proposed change of a record is checked against it, which finds errors in the model of the mechanism: too
        little noise, forgotten clamping.
    model : pm.Model, optional
        The model, else the one on the context stack.
    blocked : bool
        Must be True, as for all steps here.
    rng : optional
        Seed or generator; ``pm.sample(random_seed=...)`` sets it.

    Raises
    ------
    ValueError
        If `vars` have different numbers of rows, `contributions` are unknown, or `epsilon` is not positive;
        in sampling, if the release contradicts `epsilon` or is impossible where a chain starts.
    UnsupportedModel
        If records are not independent given the parameters, or the release is not a function of sums over records.

    Notes
    -----
    A sweep proposes each record in turn from its distribution given the parameters,
    :math:`x_i^* \sim f(\cdot \mid \theta)`, and accepts it with probability

    .. math:: \min\{1, g(s_{dp}, t - t_i + t_i^*) / g(s_{dp}, t)\},

    where :math:`t = \sum_i t_i` are the sums in the release and :math:`g` is the product of all factors that
    depend on them (Algorithm 1 in [1]_). The number of operations for each record does not depend on the number
    of records. If the release is :math:`\epsilon`-differentially private, no such probability is below
    :math:`e^{-\epsilon}` (Proposition 3.1): with more noise records mix better. Observed variables, potentials
    and latent variables that depend on single records (a public covariate, an answer by randomized response)
    are also part of :math:`g`.

    Mechanisms that select an output, such as the exponential mechanism and objective perturbation, can be
    written as a ``pm.CustomDist`` with its own ``logp``, if their normalizing constant is also a function of
    sums over records.

    The model and its data are read when the step is built: build a new one after ``pm.set_data``.

    A chain starts with sweeps that accept only changes which make the release more probable, until the gain is
    small; parameters move after that. If the release is impossible with the initial values of the records, as
    can happen with bounded noise, the step sets other initial values in the model. (Such noise is outside the
    theory of [1]_: chains need not reach all possible records.)

    Statistics: ``record_accepted`` (for each of up to 10 000 records), ``record_acceptance_rate`` (mean
    acceptance probability in a sweep), ``min_record_acceptance`` (the lowest acceptance probability). They are
    as public as the release. Records are stored with each draw like any variable; to store fewer variables,
    pass ``var_names=`` to ``pm.sample``.

    References
    ----------
    .. [1] Ju, N., Awan, J. A., Gong, R. and Rao, V. A. (2022). Data augmentation MCMC for Bayesian
       inference from privatized data. Advances in Neural Information Processing Systems 35.
       https://arxiv.org/abs/2206.00710

    Examples
    --------
    How many of 100 people have a trait, if the count was released with discrete Laplace noise?

    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model():
    ...     p = pm.Beta("p", 1, 1)
    ...     trait = pm.Bernoulli("trait", p, shape=100)
    ...     released = dp.DiscreteLaplace("released", trait.sum(), scale=1.0, observed=37)
    ...     step = dp.PrivatizedRecords([trait], epsilon=1.0)
    ...     idata = pm.sample(step=step)  # doctest: +SKIP
    """

    name = "privatized_records"
    default_blocked = True
    default_tune_steps = 0
    stats_dtypes_shapes: dict[str, tuple[Any, list]] = {
        "record_acceptance_rate": (np.float64, []),
        "min_record_acceptance": (np.float64, []),
    }
    _state_class = StepMethodState

    def __init__(
        self,
        vars: Sequence[Any],
        *,
        contributions: str | Sequence[str] = (),
        epsilon: float | None = None,
        model: Any = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        if not blocked:
            raise ValueError("A record is updated with all its variables: leave blocked=True.")
        if epsilon is not None:
            epsilon = as_positive_float("epsilon", epsilon)
        model = modelcontext(model)
        self.vars = get_value_vars_from_user_vars(vars, model)
        self.blocked = True
        self.epsilon: float | None = None
        names = [contributions] if isinstance(contributions, str) else contributions
        self.records = LatentRecords(model, self.vars, names)
        n = self.records.n_records
        if n <= MAX_STORED:
            self.stats_dtypes_shapes = self.stats_dtypes_shapes | {"record_accepted": (bool, [n])}
        # PyMC makes the arrays of statistics, with an entry for each draw, from types alone.
        self.stats_dtypes = [
            {
                name: np.dtype((kind, tuple(shape)))
                for name, (kind, shape) in self.stats_dtypes_shapes.items()
            }
        ]
        self._compiled: Callable | None = None
        self.set_rng(rng)
        if not self.records.is_possible(self.records.start):
            self._make_possible(model, names)
        self.epsilon = epsilon

    def set_rng(self, rng: Any) -> None:
        """Start a chain (PyMC 5)."""
        self.rng = get_random_generator(rng, copy=False)
        self._generators = self.records.generators(self.rng)
        self._started = False

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain (PyMC 6)."""
        self.set_rng(rng)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_compiled": None}  # for another process to compile itself

    def step(self, point: PointType) -> tuple[PointType, list[dict[str, Any]]]:
        """Sweep over all records once."""
        if not self._started:
            if not self.records.is_possible(point):
                raise ValueError(
                    "The release is impossible with the initial records and parameters of the chain, and no "
                    "records were found with which it is possible. Set initval= of both, so that it has a "
                    "positive probability, and check whether the model fits it."
                )
            point = self._fitted(point)
            self._started = True
        point, sweep = self._sweep(point, np.log1p(-self.rng.random(self.records.n_records)))
        stats: dict[str, Any] = {
            "record_acceptance_rate": sweep.rate,
            "min_record_acceptance": math.exp(sweep.lowest),
        }
        if "record_accepted" in self.stats_dtypes_shapes:
            stats["record_accepted"] = sweep.accepted
        return point, [stats]

    def _fitted(self, point: PointType) -> PointType:
        """Records that fit the release, by sweeps that accept every change which makes it more probable."""
        for _ in range(MAX_START):
            point, sweep = self._sweep(point, np.zeros(self.records.n_records))
            if not sweep.gain >= 1:
                break
        return point

    def _make_possible(self, model: Any, contributions: Sequence[str]) -> None:
        """Set initial records with which the release is possible: NUTS refuses to start otherwise.

        If none are found, the first sweep raises an error.
        """
        possible, self.records = (
            self.records,
            LatentRecords(model, self.vars, contributions, nearness=True),
        )
        point = dict(possible.start)
        for _ in range(MAX_START):
            point, _ = self._sweep(point, np.zeros(self.records.n_records))
            if possible.is_possible(point):
                possible.set_initial(model, point)
                break
        self.records, self._compiled = possible, None
        self.set_rng(self.rng)

    def _sweep(self, point: PointType, log_uniforms: np.ndarray) -> tuple[PointType, _Sweep]:
        if self._compiled is None:
            self._compiled = _compile(self.records.outer.vm.jit_fn)
        proposed = self.records.draw(point, self._generators)
        terms = self.records.terms(point, proposed)
        parameters = tuple(np.asarray(point[name]) for name in self.records.parameters)
        sweep = _Sweep(*self._compiled(parameters, *terms, log_uniforms))
        self._check(sweep)
        point = dict(point)
        for name, values in zip(self.records.names, proposed, strict=True):
            point[name] = np.where(along(sweep.accepted, values), values, point[name])
        return point, sweep

    def _check(self, sweep: _Sweep) -> None:
        worst = max(-sweep.lowest, sweep.highest)
        if self.epsilon is not None and worst > self.epsilon * (1 + 1e-6):
            raise ValueError(
                f"The release, as written in the model, is not {self.epsilon}-differentially "
                f"private: a change of one record changed its probability by exp({worst:.4g}). "
                "Its noise, or the clamping of the records, does not have that guarantee, and the "
                "posterior would be wrong. Correct the model, or leave out epsilon if the release has "
                "another guarantee (such as delta > 0)."
            )


class _Sweep(NamedTuple):
    """Result of a sweep: `lowest` and `highest` are the extremes of 0 and the log-ratios, proposed over current.

    `gain` is the gain in log-probability, `rate` the mean acceptance probability.
    """

    accepted: np.ndarray
    gain: float
    rate: float
    lowest: float
    highest: float


def _compile(outer: Callable) -> Callable:
    """Compile the sweep around the log-probability of the release as a function of the sums."""

    @numba.njit(error_model="numpy")
    def sweep(
        parameters: tuple, current: np.ndarray, proposed: np.ndarray, log_uniforms: np.ndarray
    ) -> tuple[np.ndarray, float, float, float, float]:
        n, width = current.shape
        accepted = np.zeros(n, dtype=np.bool_)
        gain, rate, lowest, highest = 0.0, 0.0, 0.0, 0.0
        sums = np.zeros(width)
        for i in range(n):
            for j in range(width):
                sums[j] += current[i, j]
        value = outer(sums, *parameters)[0].item()
        new = np.empty(width)
        for i in range(n):
            for j in range(width):
                new[j] = sums[j] + (proposed[i, j] - current[i, j])
            new_value = outer(new, *parameters)[0].item()
            log_ratio = new_value - value
            if math.isnan(log_ratio):
                log_ratio = -math.inf
            if log_uniforms[i] < log_ratio:
                accepted[i] = True
                gain += log_ratio
                value = new_value
                for j in range(width):
                    sums[j] = new[j]
            rate += min(1.0, math.exp(log_ratio))
            lowest, highest = min(lowest, log_ratio), max(highest, log_ratio)
        return accepted, gain, rate / n, lowest, highest

    return sweep
