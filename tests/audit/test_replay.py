"""Every public call that spends, on every source: on a hostile neighbour only what was paid for differs (see replay.py)."""

from __future__ import annotations

import functools
import logging
import math
import warnings

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.privacy.budget import memory
from tests.audit import audited_samplers as samplers
from tests.audit.audited_samplers import EXTREMES, SAMPLERS
from tests.audit.replay import Leak, check_equal, recorded, replayed

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("quick_scores"),
]

N = 60
RNG = np.random.default_rng(20)
X, Z, Y = RNG.normal(size=N), RNG.normal(size=N), RNG.normal(0.3, 1.0, size=N)
TERMS = {"epsilon": 4.0, "delta": 1e-5}
RUN = {"draws": 8, "chains": 1, "cores": 1, "random_seed": 3, "compute_convergence_checks": False}


def with_last(array, *values):
    """The array, and it with other last values, by value."""
    return {repr(v): np.append(array[:-1], [v]).astype(array.dtype) for v in values}


#: One record that is any number; all values equal, but for one; PyMC takes NaN for a missing value.
ANY = with_last(Y, *EXTREMES[1:])
SOME, NAN = with_last(Y, math.inf, -1e300, 5e-324), with_last(Y, math.nan)
ALL_EQUAL = np.zeros(N), with_last(np.zeros(N), 1.0)


def budget_of(epsilon=4.0, delta=1e-5, **options):
    return dp.PrivacyBudget(epsilon, delta, chains=1, **options)


def expanded(value, mu):
    """Log-density of a normal variable; no number where a difference would be infinite."""
    return value * mu - 0.5 * (value**2 + mu**2)


def regression(x, y):
    """A mean and a slope; a Deterministic that shows the covariates, and one that does not."""
    a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
    pm.Deterministic("fitted", a + b * x)
    pm.Deterministic("ratio", pm.math.exp(b))
    pm.Normal("y", a + b * x, 1.0, observed=y)


def mean(y):
    pm.Normal("y", pm.Normal("a", 0, 2), 1.0, observed=y)


def model_of(function, *data):
    with pm.Model() as model:
        function(*data)
    return model


def saved(result, path):
    """The result, and what is read from its file, with the scores that are in it."""
    result.to_netcdf(str(path / "r.nc"))
    import arviz as az

    read = az.from_netcdf(str(path / "r.nc"))
    return [result, dp.PrivacyReport.of(read), read, dp.PrivateScores.of(read).to_dict()]


# ---------------------------------------------------------------- calls: of data, and a folder


def sample_public(y, folder):
    return saved(
        dp.sample(model=model_of(regression, X, y), covariates="public", **TERMS, **RUN), folder
    )


def sample_pure(y, folder):
    return saved(dp.sample(model=model_of(mean, y), epsilon=4.0, delta=0, **RUN), folder)


def sample_add_remove(y, folder):
    options = {"adjacency": "add_remove", "n_records": N, "ledger": folder / "data.ledger"}
    (folder / "data.ledger").unlink(missing_ok=True)
    return saved(dp.sample(model=model_of(mean, y), **options, **TERMS, **RUN), folder)


def sample_stand_in(xy, folder):
    stand_in = model_of(regression, Z, Z)
    return saved(dp.sample(model=model_of(regression, *xy), covariates=stand_in, **TERMS, **RUN), folder)  # fmt: skip


def by_name(x, y):
    with pm.Model() as model:
        regression(pm.Data("x", x), y)
    return model


def sample_ranges(xy, folder):
    return saved(dp.sample(model=by_name(*xy), covariates=dp.Ranges(x=(-3, 3)), **TERMS, **RUN), folder)  # fmt: skip


def sample_records(y, folder):
    return saved(
        dp.sample(model=model_of(mean, y), records=np.arange(N) // 3, covariates="public", **TERMS, **RUN), folder
    )  # fmt: skip


def sample_plan(y, folder):
    model = model_of(regression, X, y)
    plan = dp.plan(model=model, covariates="public", random_seed=1, **TERMS)
    print(plan)
    return [plan.budget.report(), saved(dp.sample(plan=plan, **RUN), folder)]


def sample_planned_step(y, folder):
    simulator = dp.Simulator(model_of(mean, y))
    plan = dp.plan(
        epsilon=30.0, delta=1e-5, step=dp.DPPenalty, chains=1, simulator=simulator, guess={"a": 0.3}, max_draws=10, random_seed=1
    )  # fmt: skip
    print(plan)
    return dp.sample(plan=plan, **{k: v for k, v in RUN.items() if k != "chains"})


def from_memory(y, folder):
    return dp.Records({"x": X, "y": y}, block_rows=16)


def from_parquet(y, folder):
    pd.DataFrame({"x": X, "y": y}).to_parquet(folder / "data.parquet", row_group_size=25)
    return dp.Records.from_parquet(folder / "data.parquet", block_rows=16)


def sample_source(source, y, folder):
    data = source(y, folder)
    print(data)
    return saved(
        dp.sample(model=regression, data=data, covariates=model_of(regression, Z, Z), **TERMS, **RUN), folder
    )  # fmt: skip


def sample_sites(adds_noise, y, folder):
    from pymc_dp.data import Sites
    from tests import test_sites

    parts = dp.Records({"x": X, "y": y}).split(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_sites, "model", regression)
        with test_sites.served(parts, adds_noise=adds_noise) as connections:
            return sample_source(lambda y, folder: Sites(connections, timeout=60.0), y, folder)


def sample_dask(y, folder):
    pytest.importorskip("distributed")
    client = dask_client()
    shards = dp.Shards(dp.Records({"x": X, "y": y}).split(3), client=client)
    return sample_source(lambda y, folder: shards, y, folder)


@functools.cache
def dask_client():
    import distributed

    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)  # fmt: skip
    return distributed.Client(cluster)


def scores(y, folder):
    found = dp.private_scores(
        model_of(mean, y), budget=budget_of(), random_seed=2, progressbar=True
    )
    found.to_json() if hasattr(found, "to_json") else None
    return [found, found.to_dict(), found.report]


def start(y, folder):
    simulator = dp.Simulator(model_of(mean, y))
    return dp.planning.private_start(simulator, budget=budget_of(), n_steps=3, random_seed=1)


@functools.cache
def released():
    """Scores and posteriors of other records: public."""
    found = dp.sample(model=model_of(mean, Z), random_seed=1, draws=40, chains=1, cores=1, progressbar=False, **TERMS)  # fmt: skip
    return found, dp.PrivateScores.of(found)


def ppc(y, folder):
    return dp.private_ppc(
        released()[1], model_of(mean, y), statistics=["mean", "variance", "max"] if False else ["mean", "variance"],
        budget=budget_of(), n_replicates=20, random_seed=1,
    )  # fmt: skip


def student(y):
    pm.StudentT("y", nu=4, mu=pm.Normal("a", 0, 2), sigma=1.0, observed=y)


def compare(y, folder):
    posteriors = {"normal": released()[0], "student": released()[0]}
    models = {"normal": model_of(mean, y), "student": model_of(student, y)}
    return dp.private_compare(posteriors, models, budget=budget_of(), n_draws=5, random_seed=1)


def sums(y, folder):
    ball = dp.private_sum(lambda y: [y, y**2], {"y": y}, bound=3.0, budget=budget_of(delta=0))
    box = dp.private_sum(lambda y: [y], {"y": y}, bound=[3.0], budget=budget_of(), records=np.arange(len(y)) // 2)  # fmt: skip
    return ball, box


def counts(y, folder):
    return dp.private_counts(lambda y: y, {"y": y}, edges=[-1.0, 0.0, 1.0], budget=budget_of())


def sums_add_remove(y, folder):
    return dp.private_sum(lambda y: [y], {"y": y}, bound=3.0, budget=budget_of(adjacency="add_remove"))  # fmt: skip


def stand_in(table, folder):
    ranges = dp.Ranges(x=(-3, 3), kind=["one", "two", "three"])
    return dp.private_stand_in(table, ranges, budget=budget_of(), n_rows=20)


def step(name, y, folder):
    """Ten draws and the report, of a model that is built anew."""
    budget = budget_of(8.0, accountant="rdp")
    kind, settings = SAMPLERS[name]
    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu", 0, 2), logp=expanded, observed=y)
        built = kind(budget=budget, **settings)
    idata = samplers.sample(model, built, budget, draws=10, progressbar=True, compute_convergence_checks=True)  # fmt: skip
    return dp.release(idata, model, budget), budget.report()


KINDS = np.array(["one", "two"] * (N // 2), dtype=object)
TABLE = {"x": X, "kind": KINDS}
TABLES = {
    **{f"x {k}": TABLE | {"x": x} for k, x in with_last(X, *EXTREMES[1:], math.nan).items()},
    "never declared": TABLE | {"kind": np.append(KINDS[:-1], "other")},
    "pd.NA": TABLE | {"kind": np.append(KINDS[:-1], pd.NA)},
    "None": TABLE | {"kind": np.append(KINDS[:-1], None)},
    "number": TABLE | {"kind": np.append(KINDS[:-1], 7)},
    "NaN": TABLE | {"kind": np.append(KINDS[:-1], math.nan)},
}
COVARIATE = {
    "x = inf": (with_last(X, math.inf)["inf"], Y),
    "x = -1e300": (with_last(X, -1e300)["-1e+300"], Y),
    "y = 1e300": (X, ANY["1e+300"]),
}


class Cell(NamedTuple):
    """A call with its data and neighbours; the first `fast` neighbours are in the default run."""

    call: Any
    data: Any = Y
    neighbours: Any = SOME
    fast: int = 0


LESS = {"a row less": Y[:-1]} | SOME
CELLS = {
    "sample": Cell(sample_public),
    "sample, all equal": Cell(sample_public, *ALL_EQUAL),
    "sample, delta 0": Cell(sample_pure, fast=1),
    "sample, add/remove": Cell(sample_add_remove, neighbours=LESS),
    "sample, stand-in": Cell(sample_stand_in, (X, Y), COVARIATE),
    "sample, Ranges": Cell(sample_ranges, (X, Y), COVARIATE),
    "sample, records": Cell(sample_records),
    "sample, plan": Cell(sample_plan),
    "sample, planned step": Cell(sample_planned_step),
    "sample, Records": Cell(functools.partial(sample_source, from_memory), neighbours=SOME | NAN),
    "sample, Parquet": Cell(functools.partial(sample_source, from_parquet), neighbours=SOME | NAN),
    "sample, Dask": Cell(sample_dask, neighbours=SOME | NAN),
    "sample, sites": Cell(functools.partial(sample_sites, False), neighbours=SOME | NAN),
    "sample, sites with noise": Cell(functools.partial(sample_sites, True), neighbours=SOME | NAN),
    "scores": Cell(scores),
    "scores, all equal": Cell(scores, *ALL_EQUAL),
    "start": Cell(start),
    "ppc": Cell(ppc),
    "compare": Cell(compare),
    "sums": Cell(sums, neighbours=ANY | NAN, fast=9),
    "sums, all equal": Cell(sums, *ALL_EQUAL, fast=9),
    "sums, a row less": Cell(sums_add_remove, neighbours={"a row less": Y[:-1]}, fast=9),
    "counts": Cell(counts, neighbours=ANY | NAN, fast=9),
    "counts, all equal": Cell(counts, *ALL_EQUAL, fast=9),
    "stand-in": Cell(stand_in, TABLE, TABLES, fast=20),
    **{name: Cell(functools.partial(step, name), neighbours=ANY) for name in SAMPLERS},
}


def audit(name, folder, most=None):
    """Record a call and replay it; each run is that of a program that has not seen such data."""
    cell = CELLS[name]

    def call(data):
        memory.forget()
        return cell.call(data, folder)

    neighbours = dict([*cell.neighbours.items()][:most])
    return replayed(call, cell.data, neighbours, [*X[:-1], *Y[:-1]] if cell.data is not Y else Y[:-1])


def check(name, folder, most=None):
    run, leaks = audit(name, folder, most)
    assert run.noisy and {"noise", "claim"} <= {event[0] for event in run.events}
    assert leaks == {}


@pytest.mark.parametrize("name", [n for n, cell in CELLS.items() if cell.fast])
def test_only_what_was_paid_for_differs(name, tmp_path):
    check(name, tmp_path, CELLS[name].fast)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, cell in CELLS.items() if cell.fast < len(cell.neighbours)])  # fmt: skip
def test_only_what_was_paid_for_differs_in_full(name, tmp_path):
    check(name, tmp_path)
