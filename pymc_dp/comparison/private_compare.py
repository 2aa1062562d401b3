"""private_compare(): which of several released models predicts private records better."""

from __future__ import annotations

import math
import warnings

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.arguments import as_clip_bound, as_integer
from pymc_dp.comparison.comparison_result import PrivateComparison, PrivateComparisons
from pymc_dp.comparison.difference_clipping import (
    ClipForecast,
    best_clipping,
    forecast,
    simulated_differences,
)
from pymc_dp.containers import group_of
from pymc_dp.errors import PrivacyLeakWarning
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.model.predictive_densities import Differences, PredictiveDensities, positions
from pymc_dp.model.row_positions import check_neighbours
from pymc_dp.planning.compiled_once import simulator_of
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.mechanism import Adjacency
from pymc_dp.progress import note, showing
from pymc_dp.queries.noisy_total import noise_of_all, release_all

_LABEL = "private comparison"


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A model under comparison, with draws of its released posterior on the unconstrained scale."""

    model: pm.Model
    likelihood: Likelihood
    simulator: Simulator | None
    draws: np.ndarray


@showing
def private_compare(
    released: Mapping[str, Any],
    models: Mapping[str, Any],
    *,
    budget: PrivacyBudget,
    covariates: Any = None,
    bound: float | None = None,
    records: Any = None,
    public: Sequence[Any] | Mapping[str, Sequence[Any]] = (),
    n_draws: int = 100,
    noise: str = "auto",
    random_seed: Any = None,
    progressbar: bool | str = True,
) -> PrivateComparison | PrivateComparisons:
    r"""Release how much better one model predicts private records than others, with noise.

    For each record, the difference :math:`d_i` of the two log predictive densities is clipped to ``[-bound, bound]``.
    The sums of these and of their squares are released together, once. (The sum of :math:`d_i` is the difference in
    *elpd*, expected log predictive density, on these records [1]_.) If there are more than two models, the first one
    is compared with each of the others, in the same release.

    Use records that were held out: make models for them that differ from the fitted ones in the data only. They are
    other people, so posterior and comparison together cost the larger of the two epsilons (parallel composition), if
    nobody is in both. On the records that gave the posteriors the costs add up, and the comparison is optimistic: each
    model looks better than on new records by about one unit per parameter, so that the larger model gains about one
    unit per further parameter.

    Parameters
    ----------
    released : mapping of str to result
        Two posteriors or more by name, as :func:`~pymc_dp.sample` or :func:`~pymc_dp.release` returns them. They must be
        public: they are not paid for here.
    models : mapping of str to pm.Model or Simulator
        By the same names, the models with the records on which they are compared, the same in all: observed
        variables of the same names and values. A :class:`~pymc_dp.Simulator` is compiled already, and has its own
        `covariates`, `records` and `public`.
    budget : PrivacyBudget
        Pays for the release, all of it: nothing else can be claimed on it later.
    covariates : "public" or mapping of str to pm.Model, optional
        How records are simulated if models have covariates, see :class:`~pymc_dp.Simulator`; a mapping has a stand-in
        for each model, of the same rows. Not needed if `bound` is given.
    bound : float, optional
        Public clip bound, in nats; not computed from the data. By default, the one with the least error on records
        that are simulated from both models of a pair.
    records : array of int, or dict of str to such arrays, optional
        Privacy unit that each row belongs to, see :class:`~pymc_dp.model.RecordLikelihood`.
    public : sequence of str or array, or mapping of str to such sequences
        Arrays without data of records, of all models or by model; see :class:`~pymc_dp.model.RecordLikelihood`.
    n_draws : int
        Draws of each posterior that the predictive density averages over, evenly spaced. By default 100.
    noise : {"auto", "gaussian", "l2"}
        ``"auto"`` takes the one with the smaller standard deviation.
    random_seed : int or Generator, optional
        Of the simulated records; never of the noise.
    progressbar : bool
        Show what is being done, and what part of the budget is being spent. By default True.

    Returns
    -------
    PrivateComparison
        Of two models; of more, :class:`~pymc_dp.comparison.PrivateComparisons`, with one for each of the others.

    Raises
    ------
    ValueError, TypeError, UnsupportedModel
        If arguments do not fit together, before anything is claimed.
    PrivacyBudgetExhausted
        If something was claimed on the budget before, or its ledger does not pay for it.

    Warns
    -----
    PrivacyLeakWarning
        If a posterior carries no privacy report, or one that states no protection.

    Notes
    -----
    The released pair is the sum of ``(t, t**2 / c)`` with ``t = clip(d / bound, -1, 1)``. If a record is replaced,
    ``c = 1``, and the L2 sensitivity is 2; if it is added or removed, ``c = 4``, and it is ``sqrt(17) / 4``. The proof
    is in :class:`pymc_dp.model.predictive_densities.Differences`. The vector of `m` pairs has ``sqrt(m)`` times the sensitivity, and its
    noise has as many coordinates: comparing many models at once costs accuracy. A difference that is not a number (both densities are 0) counts
    as 0, an infinite one as the bound.

    References
    ----------
    .. [1] Vehtari, Gelman and Gabry (2017), Practical Bayesian model evaluation using leave-one-out cross-validation
       and WAIC, https://doi.org/10.1007/s11222-016-9696-4.

    Examples
    --------
    Normal or Student's t errors, fitted to 2000 records and compared on 2000 others:

    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).standard_t(3, size=4000)
    >>> def normal(y):
    ...     with pm.Model() as model:
    ...         sigma = pm.HalfNormal("sigma", 3)
    ...         pm.Normal("y", 0, sigma, observed=y)
    ...     return model
    >>> def student(y):
    ...     with pm.Model() as model:
    ...         sigma = pm.HalfNormal("sigma", 3)
    ...         pm.StudentT("y", nu=3, mu=0, sigma=sigma, observed=y)
    ...     return model
    >>> fit = {"epsilon": 1.0, "delta": 1e-6, "draws": 100, "progressbar": False}
    >>> fit |= {"random_seed": 2, "compute_convergence_checks": False}
    >>> import warnings
    >>> with warnings.catch_warnings():  # the fit check rejects the normal model
    ...     warnings.simplefilter("ignore")
    ...     released = {
    ...         f.__name__: dp.sample(model=f(y[:2000]), **fit) for f in (student, normal)
    ...     }
    >>> budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=1)
    >>> held_out = {f.__name__: f(y[2000:]) for f in (student, normal)}
    >>> found = dp.private_compare(released, held_out, budget=budget, random_seed=3)
    >>> found.names, found.difference > 0
    (('student', 'normal'), True)
    """
    names = _names(released, models)
    n_draws = as_integer("n_draws", n_draws, 1)
    if bound is not None:
        bound = as_clip_bound("bound", bound, True, "it limits what one record contributes.")
    n_dim = 2 * (len(names) - 1)
    mechanism = noise_of_all(budget, _LABEL, n_dim, noise)
    unbounded = Differences((math.nan,) * (len(names) - 1), budget.adjacency)
    noise_sd = unbounded.sensitivity(budget.adjacency) * mechanism.noise_sd
    candidates = []
    for name in names:
        options = {"records": records, "public": _of(public, name), "covariates": _of(covariates, name)}  # fmt: skip
        model, likelihood, simulator = _compiled(name, models[name], options, bound is not None)
        check_neighbours(likelihood, budget.adjacency)
        draws = positions(model, _thinned(name, released[name], n_draws))
        candidates.append(_Candidate(model, likelihood, simulator, draws))
    first, rng = candidates[0], np.random.default_rng(random_seed)
    note("compiling the predictive densities")
    densities = PredictiveDensities(*((c.likelihood, c.draws) for c in candidates))
    note("choosing clip bounds on simulated records")
    clippings = [
        _clipping((first, other), budget, bound, noise_sd, rng) for other in candidates[1:]
    ]
    bounds = [_bound(bound, clipping) for clipping in clippings]
    n_records = first.likelihood.n_records
    containers = [array for c in candidates for array in c.likelihood.containers]
    assumptions = _assumptions(names, released)
    note(f"spending epsilon = {budget.epsilon:g} on the comparison")
    term = Differences(tuple(bounds), budget.adjacency)
    found = release_all(budget, _LABEL, mechanism, densities, term, containers, n_records)
    scale, report = 2.0**term.log_square_scale, budget.report()
    is_public = any(
        c.simulator is not None and c.simulator.has_public_covariates for c in candidates
    )
    report = replace(
        report, assumptions=(*report.assumptions, *assumptions), public_covariates=is_public
    )
    results = tuple(
        PrivateComparison(
            names=(names[0], other),
            difference=float(total) * b,
            squares=float(squares) * scale * b**2,
            bound=b,
            noise=found.noise,
            square_scale=scale,
            clipping=clipping,
            n_records=n_records if budget.adjacency is Adjacency.SUBSTITUTE else None,
            report=report,
        )
        for other, (total, squares), b, clipping in zip(
            names[1:], found.total.reshape(-1, 2), bounds, clippings, strict=True
        )
    )
    return results[0] if len(results) == 1 else PrivateComparisons(results)


def _names(released: Any, models: Any) -> tuple[str, ...]:
    """The names of the models, in their order."""
    for what, given in (("released", released), ("models", models)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} must map names of models to them, got {type(given).__name__}.")
    if len(models) < 2 or {*released} != {*models}:
        raise ValueError(
            f"released and models must have the same names, two or more, got {', '.join(map(str, released))} and {', '.join(map(str, models))}."
        )
    return tuple(models)


def _of(argument: Any, name: str) -> Any:
    """The argument for one model; a mapping has one for each."""
    if not isinstance(argument, Mapping):
        return argument
    if name not in argument:
        raise ValueError(f"covariates and public, if they are mappings, need all names of models: {name!r} is not among {', '.join(map(str, argument))}.")  # fmt: skip
    return argument[name]


def _compiled(
    name: str, model: Any, options: dict[str, Any], has_bound: bool
) -> tuple[pm.Model, Likelihood, Simulator | None]:
    """Model, likelihood, and simulator if records can and must be simulated."""
    if isinstance(model, Simulator):
        if given := [
            n for n, x in options.items() if x is not None and not (n == "public" and not len(x))
        ]:
            raise ValueError(f"models[{name!r}] is a Simulator, which has its own {', '.join(given)}: leave them out here.")  # fmt: skip
        model.check_data()
        return model.model, model.likelihood, model
    if not isinstance(model, pm.Model):
        raise TypeError(f"models[{name!r}] must be a pm.Model or a Simulator, got {type(model).__name__}.")  # fmt: skip
    covariates = options.pop("covariates")
    if has_bound and covariates is None:
        return model, RecordLikelihood(model, **options), None
    simulator = simulator_of(model, covariates=covariates, **options)
    return model, simulator.likelihood, simulator


def _thinned(name: str, released: Any, n_draws: int) -> dict[str, np.ndarray]:
    """Evenly spaced draws of a posterior's variables, shape ``(n, *shape)``."""
    posterior = group_of(released, "posterior").stack(all_draws=("chain", "draw"))
    posterior = posterior.transpose("all_draws", ...)
    n = posterior.sizes["all_draws"]
    chosen = np.unique(np.linspace(0, n - 1, min(n_draws, n)).astype(int))
    if not len(chosen):
        raise ValueError(f"released[{name!r}] has no draws.")
    return {str(v): np.asarray(posterior[v])[chosen] for v in posterior.data_vars}


def _clipping(
    candidates: Sequence[_Candidate],
    budget: PrivacyBudget,
    bound: float | None,
    noise_sd: float,
    rng: np.random.Generator,
) -> ClipForecast | None:
    """Forecast of the given clip bound or of the best one; None if records cannot be simulated."""
    simulators = [c.simulator for c in candidates if c.simulator is not None]
    if len(simulators) < 2:
        return None
    for simulator in simulators:
        simulator.check_budget(budget)
    n_records = simulators[0].n_records
    found = simulated_differences(simulators, [c.draws for c in candidates], rng)
    if bound is not None:
        return forecast(bound, found, n_records)
    return best_clipping(found, n_records, noise_sd)


def _bound(bound: float | None, clipping: ClipForecast | None) -> float:
    """The given clip bound, or else the best one."""
    if bound is None:
        assert clipping is not None
        return clipping.bound
    return bound


def _assumptions(names: Sequence[str], released: Mapping[str, Any]) -> list[str]:
    """Assumptions of the guarantee; a warning if nothing shows that the draws are public."""
    found = []
    for name in names:
        try:
            is_public = PrivacyReport.of(released[name]).protected
        except ValueError:
            is_public = False
        if not is_public:
            found.append(f"The posterior {name!r} is public, although no privacy report shows it.")
    if found:
        warnings.warn(
            f"{' '.join(found)} If it was computed from private data, so was the comparison, and the budget does not cover that: "
            "compare what dp.sample or dp.release returned.",
            PrivacyLeakWarning,
            stacklevel=3,
        )
    return found
