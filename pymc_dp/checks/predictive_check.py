"""private_ppc(): posterior predictive checks with differential privacy, of a posterior given noisy scores."""

from __future__ import annotations

import inspect

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.arguments import as_integer
from pymc_dp.checks.check_result import CheckedStatistic, PrivatePPC
from pymc_dp.checks.predictive_law import replicated_sums
from pymc_dp.checks.statistics_of_records import (
    PREDICTION,
    Block,
    GroupMeans,
    JoinedBlocks,
    block_of,
    block_of_function,
)
from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import observed_arrays, observed_values, upstream
from pymc_dp.model.record_function import RecordFunction
from pymc_dp.planning.compiled_once import simulator_of
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.mechanism import Adjacency
from pymc_dp.progress import note, showing
from pymc_dp.queries.noisy_total import check_unused, noise_of_all, release_all
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_step import DPScore

_LABEL = "private ppc"
#: Parameters, and data sets at each, whose mean outcome is a record's prediction; data sets that choose bounds and bins.
_N_PARAMETERS, _N_SETS, _N_DESIGN = 40, 5, 10


@showing
def private_ppc(
    released: Any,
    model: pm.Model | None = None,
    *,
    statistics: Sequence[Any] | Mapping[str, Any],
    budget: PrivacyBudget,
    covariates: Any = None,
    simulator: Simulator | None = None,
    noise: str = "auto",
    n_replicates: int = 1000,
    random_seed: Any = None,
    progressbar: bool | str = True,
) -> PrivatePPC:
    r"""Release statistics of the data with noise, and compare them with what the posterior predicts.

    Parameters
    ----------
    released : result of :func:`~pymc_dp.sample`, or PrivateScores
        The posterior; its scores are all that is used of it.
    model : pm.Model, optional
        The model with the private data; by default that of the simulator, or the one on the context stack.
    statistics : sequence of str, or mapping of names to str, GroupMeans or functions
        ``"mean"``, ``"variance"``, ``"zeros"`` (share of zeros), ``"bins"`` (counts in bins between quantiles that the
        posterior predicts), ``"rootogram"`` (numbers of 0, 1, ...), ``"residuals"`` (sum of outcome minus prediction, over the
        expected number, in bins of the prediction, which is the posterior mean: with public covariates only; for
        0/1 outcomes this is a calibration plot). Functions are as for :func:`~pymc_dp.private_sum`: of one
        row's data, by the names of observed variables and ``pm.Data``, or ``prediction``; the mean is released.
    budget : PrivacyBudget
        Pays for the release of all statistics, all of it. Its adjacency must be that of the scores.
    covariates : "public", pm.Model or Ranges, optional
        How records are simulated if there are covariates: from the model's own if these are public, a stand-in, or
        ranges (:class:`~pymc_dp.Simulator`).
    simulator : Simulator, optional
        In place of `model` and `covariates`.
    noise : {"auto", "gaussian", "l2"}
        Law of the noise; ``"auto"`` takes the one with the smaller standard deviation.
    n_replicates : int
        The smallest p-value is about ``1 / n_replicates``.
    random_seed : int, optional
        Of the simulations. The noise is always secret.
    progressbar : bool
        Show what is being done, and what part of the budget is being spent. By default True.

    Returns
    -------
    PrivatePPC

    Raises
    ------
    ValueError, TypeError, UnsupportedModel
        If arguments do not fit together, before anything is claimed or accessed.
    PrivacyBudgetExhausted
        If something was claimed on the budget before, or its ledger does not pay for it.

    Notes
    -----
    All statistics are one release. A record moves the vector of each statistic by at most 1, in its units, and that of
    `J` statistics by at most :math:`\sqrt J` (proof: :mod:`pymc_dp.checks.statistics_of_records`). Clip bounds and bins are quantiles of
    outcomes that are simulated from the posterior.

    Replicates are drawn from the law of statistics given the scores, of the same records
    (:mod:`pymc_dp.checks.predictive_law`), with the same noise. So p-values are uniform if the model and the prior are right;
    those of new records at the posterior's parameters would be too close to 1/2. The p-value of several values is
    that of a chi-square distance or of the largest standardized difference, of counts beyond an edge, too. It is computed from the
    rank among replicates, which include the released value.

    Under add/remove the number of records is taken to be that of the scores, which is a public guess.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).negative_binomial(2, 0.4, size=1000)
    >>> with pm.Model() as model:
    ...     log_rate = pm.Normal("log_rate", 0, 2)
    ...     _ = pm.Poisson("y", pm.math.exp(log_rate), observed=y)
    >>> account = dp.Ledger(epsilon=3.0, delta=1e-5)
    >>> first, budget = (
    ...     dp.PrivacyBudget(1.0, 1e-6, chains=1, ledger=account) for _ in range(2)
    ... )
    >>> with model:
    ...     scores = dp.private_scores(budget=first)
    >>> ppc = dp.private_ppc(
    ...     scores, model, statistics=["variance", "zeros"], budget=budget, n_replicates=200
    ... )
    >>> ppc["variance"].p_value < 0.05
    True
    """
    n = as_integer("n_replicates", n_replicates, 20)
    step = _step(released, model, covariates, simulator, budget)
    rng = np.random.default_rng(random_seed)
    note("sampling the posterior given the scores")
    states = step.states(rng.integers(2**32))
    note("compiling the statistics")
    rows = _Rows(step, states, rng)
    blocks = _blocks(statistics, rows)
    substituted = budget.adjacency is Adjacency.SUBSTITUTE
    sizes = [b.diameter if substituted else b.length for b in blocks]
    of_records = RecordFunction(_joined(blocks, sizes), rows.private)
    likelihood, d = step.simulator.likelihood, of_records.n_dim
    mechanism = noise_of_all(budget, _LABEL, d, noise)
    note(f"spending epsilon = {budget.epsilon:g} on statistics")
    term = JoinedBlocks(np.zeros(d), np.ones(d), len(blocks))
    found = release_all(
        budget, _LABEL, mechanism, of_records, term, likelihood.containers, likelihood.n_records
    )  # fmt: skip
    total, law = found.total, found.noise

    def vectors(data: list[np.ndarray]) -> np.ndarray:
        return np.nan_to_num(of_records.of(rows.of(data)), nan=0.0)[step.simulator.simulated.rows]

    note("replicating the statistics")
    sums = replicated_sums(step, states, vectors, n, rng)
    noisy = sums + law.draw(n, rng)
    checked, begin, number = [], 0, step.scores.n_records
    for block, size in zip(blocks, sizes, strict=True):
        part = slice(begin, begin := begin + block.n_dim)
        released_value, replicates, exact = (
            block.value(size * np.atleast_2d(a)[:, part], number) for a in (total, noisy, sums)
        )
        p_value = p_value_of(np.vstack([released_value, replicates]), block.ordered)
        noise_sd = (replicates - exact).std(axis=0)
        checked.append(CheckedStatistic(block.name, block.labels, released_value[0], replicates, noise_sd, p_value))  # fmt: skip
    report = replace(budget.report(), public_covariates=step.simulator.has_public_covariates)
    return PrivatePPC(tuple(checked), law, number, report)


def p_value_of(rows: np.ndarray, ordered: bool) -> float:
    """Monte Carlo p-value of the first row among all rows, valid because all rows are treated alike.

    One column: two-sided. Several: the smaller of the p-values of a chi-square distance and of the largest standardized
    difference, ranked among the same minimum for all rows.
    """
    if rows.shape[1] == 1:
        x = rows[:, 0]
        return float(min(1.0, 2 * min(np.mean(x >= x[0]), np.mean(x <= x[0]))))
    errors = rows - rows.mean(axis=0)
    inverse = np.linalg.pinv(np.cov(errors, rowvar=False), rcond=1e-10, hermitian=True)
    both = errors
    if ordered:
        both = np.hstack([errors, errors[:, ::-1].cumsum(axis=1)[:, :-1]])
    spread = both.std(axis=0)
    z = np.abs(both) / np.where(spread > 0, spread, np.inf)
    measures = (errors @ inverse * errors).sum(axis=1), z.max(axis=1)
    ranks = [len(s) - np.searchsorted(np.sort(s), s) for s in measures]  # at least as large
    least = np.minimum(*ranks)
    return float(np.mean(least <= least[0]))


def _step(released: Any, model: Any, covariates: Any, simulator: Any, budget: Any) -> DPScore:
    """The posterior's sampler without its data; raises for arguments that do not fit."""
    scores = released if isinstance(released, PrivateScores) else PrivateScores.of(released)
    check_unused(budget, _LABEL)
    if budget.adjacency.value != scores.adjacency:
        raise ValueError(f"The budget's adjacency is {budget.adjacency.value}, that of the scores {scores.adjacency}: they must agree.")  # fmt: skip
    if simulator is None:
        simulator = simulator_of(model, covariates=covariates)
    elif covariates is not None or model not in (None, simulator.model):
        raise TypeError("model and covariates are those of the simulator: leave out.")
    simulator.check_budget(budget)
    simulator.check_data()
    if simulator.temperature < 1:
        raise ValueError(f"The simulator's temperature is {simulator.temperature:g}, but a tempered likelihood predicts no records: it must be 1.")  # fmt: skip
    number = simulator.likelihood.n_records
    if budget.adjacency is Adjacency.SUBSTITUTE and number != scores.n_records:
        raise ValueError(f"The scores are those of {scores.n_records} records, but the model has {number}: give the model with the same data.")  # fmt: skip
    lengths = {len(a) if a.ndim else 0 for a in observed_arrays(simulator.model)}
    if lengths != {number}:
        raise UnsupportedModel("private_ppc() needs one row per record in each observed variable: records= with several rows is not supported yet.")  # fmt: skip
    return DPScore(scores, simulator=simulator)


class _Rows:
    """Columns of the private data and of simulated data sets, by name."""

    def __init__(self, step: DPScore, states: Any, rng: np.random.Generator) -> None:
        simulator, simulated = step.simulator, step.simulator.simulated
        model: pm.Model = simulator.model
        stand_in = isinstance(simulator.covariates, pm.Model)
        self.names = [rv.name for rv in model.observed_RVs]
        self.private = dict(zip(self.names, observed_arrays(model), strict=True))
        n_rows = len(self.private[self.names[0]])
        self._fixed: dict[str, np.ndarray] = {}
        if simulator.covariates is not None:
            other = simulator.covariates if stand_in else model
            observed = upstream(observed_values(model))
            data = {v.name: v for v in model.data_vars if v not in observed}
            public = {v.name: v for v in other.data_vars}
            for name in data.keys() & public.keys():
                own = data[name].get_value()
                if own.ndim and len(own) == n_rows:
                    self.private[name], self._fixed[name] = own, public[name].get_value()
        thetas = [next(states).theta for _ in range(_N_PARAMETERS)]
        some = [simulated.draw(theta, rng) for theta in thetas[:_N_DESIGN]]
        if simulator.covariates is not None and not stand_in and len(self.names) == 1:
            mean = np.mean([simulated.draw(t, rng)[0] for t in thetas for _ in range(_N_SETS)], axis=0)  # fmt: skip
            self.private[PREDICTION] = self._fixed[PREDICTION] = mean
        sets = [self.of(data) for data in some]
        kept = simulated.rows
        #: Columns of simulated records, for public bounds and bins.
        self.simulated = {name: np.concatenate([s[name][kept] for s in sets]) for name in sets[0]}

    def of(self, data: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Columns of a simulated data set."""
        return dict(zip(self.names, data, strict=True)) | self._fixed


def _blocks(statistics: Any, rows: _Rows) -> list[Block]:
    """Blocks of the wanted statistics."""
    if isinstance(statistics, str) or not isinstance(statistics, Mapping | Sequence):
        raise TypeError(f"statistics must be a list of names, or a dict of names and statistics, got {statistics!r}.")  # fmt: skip
    wanted = (
        dict(statistics) if isinstance(statistics, Mapping) else {_name(s): s for s in statistics}
    )
    if not wanted or len(wanted) < len(statistics):
        raise ValueError(f"statistics must be different ones, at least one, got {statistics!r}.")
    blocks = []
    for name, statistic in wanted.items():
        if callable(statistic):
            columns = rows.simulated
            of_rows = RecordFunction(statistic, columns)
            arguments = [n for n in inspect.signature(statistic).parameters if n in columns]
            blocks.append(block_of_function(name, statistic, arguments, of_rows.of(columns)))
            continue
        if len(rows.names) > 1 or rows.simulated[rows.names[0]].ndim > 1:
            raise UnsupportedModel(f"{statistic!r} is for models with one observed variable, of one number per record: give a function of {', '.join(rows.names)}.")  # fmt: skip
        blocks.append(block_of(name, statistic, rows.names[0], rows.simulated))
    return blocks


def _name(statistic: Any) -> str:
    """Name of a statistic in a list."""
    if isinstance(statistic, GroupMeans):
        return statistic.column
    return statistic if isinstance(statistic, str) else getattr(statistic, "__name__", "function")


def _joined(blocks: Sequence[Block], sizes: Sequence[float]) -> Callable[..., list]:
    """All blocks of a row, each divided by its size, as one function for RecordFunction."""
    names = sorted({name for block in blocks for name in block.columns})

    def joined(**row: Any) -> list:
        floats = {name: value.astype("float64") for name, value in row.items()}
        return [
            part / size for b, size in zip(blocks, sizes, strict=True) for part in b.vector(floats)
        ]

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    joined.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return joined
