"""Every public call that spends, on every source: on a hostile neighbour only what was paid for differs (see replay.py).

What the audit cannot find: a sensitivity that is larger than claimed, as noisy sums are given back.
"""

from __future__ import annotations

import functools
import logging
import math
import warnings

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_dp as dp

from pymc_dp import codec, ledger_file
from pymc_dp.data import Sites
from pymc_dp.model.record_function import Bins, RecordFunction
from tests import (
    test_sites,  # here: a module that is imported in the first run only draws a seed more
)
from tests.audit import audited_samplers as samplers
from tests.audit.audited_samplers import EXTREMES, SAMPLERS, expanded
from tests.audit.replay import Leak, check_equal, recorded, replayed
from tests.data.mixed_columns import fed

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("quick_scores"),
]

N = 60
RNG = np.random.default_rng(20)
X, Z, W, Y = RNG.normal(size=N), RNG.normal(size=N), RNG.normal(size=N), RNG.normal(0.3, 1.0, size=N)  # fmt: skip
TERMS = {"epsilon": 4.0, "delta": 1e-5}
RUN = {"draws": 8, "chains": 1, "cores": 1, "random_seed": 3, "compute_convergence_checks": False}


def with_last(array, *values):
    """The array, and it with other last values, by value."""
    return {repr(v): np.append(array[:-1], [v]).astype(array.dtype) for v in values}


#: One record that is any number; all values equal, but for one; PyMC takes NaN for a missing value.
ANY = with_last(Y, *EXTREMES[1:])
SOME, NAN = with_last(Y, math.inf, -1e300, 5e-324), with_last(Y, math.nan)
ONE = with_last(Y, math.inf)  # where a run takes long
ALL_EQUAL = np.zeros(N), with_last(np.zeros(N), 1.0)


def budget_of(epsilon=4.0, delta=1e-5, **options):
    return dp.PrivacyBudget(epsilon, delta, chains=1, **options)


def regression(x, y):
    """A mean and a slope; a Deterministic that shows the covariates, and one that does not."""
    a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
    pm.Deterministic("fitted", a + b * x)
    pm.Deterministic("ratio", pm.math.exp(b))
    pm.Normal("z", a + b * x, 1.0, observed=y)


def mean(y):
    pm.Normal("y", pm.Normal("a", 0, 2), 1.0, observed=y)


def model_of(function, *data):
    with pm.Model() as model:
        function(*data)
    return model


def saved(result, path):
    """The result, and what is read from its file, with the scores that are in it."""
    import arviz as az

    name = str(path / f"{len([*path.iterdir()])}.nc")  # a file that was read may still be open
    result.to_netcdf(name)
    read = az.from_netcdf(name)
    return [result, dp.PrivacyReport.of(read), read, codec.dumps(dp.PrivateScores.of(read))]


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
    return saved(
        dp.sample(model=model_of(mean, y), covariates=model_of(mean, W), **options, **TERMS, **RUN),
        folder,
    )


def sample_stand_in(xy, folder):
    stand_in = model_of(regression, Z, W)
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
    plan = dp.plan(model=model, covariates="public", interest="ratio", random_seed=1, **TERMS)
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
        dp.sample(model=fed(regression, {"x": X, "y": Y}), data=data, covariates=model_of(regression, Z, W), **TERMS, **RUN), folder
    )  # fmt: skip


def sample_sites(adds_noise, y, folder):
    parts = dp.Records({"x": X, "y": y}).split(2)
    with test_sites.served(
        parts, fed(regression, {"x": X, "y": Y}), adds_noise=adds_noise
    ) as connections:
        return sample_source(lambda y, folder: Sites(connections, timeout=600.0), y, folder)


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
    found = dp.private_scores(model=model_of(mean, y), budget=budget_of(), random_seed=2)
    return [found, codec.dumps(found)]


def start(y, folder):
    simulator = dp.Simulator(model_of(mean, y))
    return dp.scores.private_start(simulator, budget=budget_of(), random_seed=1)


@functools.cache
def released():
    """Scores and posteriors of other records: public."""
    found = dp.sample(model=model_of(mean, Z), random_seed=1, draws=40, chains=1, cores=1, progressbar=False, **TERMS)  # fmt: skip
    return found, dp.PrivateScores.of(found)


def ppc(y, folder):
    return dp.private_ppc(
        released()[1], model_of(mean, y), statistics=["mean", "variance"],
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


def counts(y, folder, epsilon=4.0):
    budget = budget_of(epsilon)
    return dp.private_counts(lambda y: y, {"y": y}, edges=[-1.0, 0.0, 1.0], budget=budget)


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


LESS = {"a row less": Y[:-1]} | ONE
CELLS = {
    "sample": Cell(sample_public, fast=1),
    "sample, all equal": Cell(sample_public, *ALL_EQUAL),
    "sample, delta 0": Cell(sample_pure, neighbours=ONE),
    "sample, add/remove": Cell(sample_add_remove, neighbours=LESS),
    "sample, stand-in": Cell(sample_stand_in, (X, Y), COVARIATE),
    "sample, Ranges": Cell(sample_ranges, (X, Y), COVARIATE),
    "sample, records": Cell(sample_records, neighbours=ONE),
    "sample, plan": Cell(sample_plan, neighbours=ONE),
    "sample, planned step": Cell(sample_planned_step, neighbours=ONE),
    "sample, Records": Cell(functools.partial(sample_source, from_memory), neighbours=ONE | NAN),
    "sample, Parquet": Cell(
        functools.partial(sample_source, from_parquet), neighbours=ONE
    ),  # a NaN is refused
    "sample, Dask": Cell(sample_dask, neighbours=ONE | NAN),
    "sample, sites": Cell(functools.partial(sample_sites, False), neighbours=ONE | NAN),
    "sample, sites with noise": Cell(functools.partial(sample_sites, True), neighbours=ONE | NAN),
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
    **{n: Cell(functools.partial(step, n), neighbours=SOME, fast=n == "penalty") for n in SAMPLERS},
}


# ---------------------------------------------------------------- refusals and errors


def shown_simulator(x, y):
    """What is known before anything is spent: no plan, no position may show data."""
    simulator = dp.Simulator(model_of(regression, x, y), covariates="public")
    return [repr(simulator), simulator.position(None, np.random.default_rng(1))]


def initial(y, folder):
    """The default guess is PyMC's initial point, which is published."""

    def begins(y):
        pm.Normal("y", pm.Normal("a", 0, 2, initval=pt.as_tensor(y).max()), 1.0, observed=y)

    return dp.Simulator(model_of(begins, y)).position(None, np.random.default_rng(1))


def equal_columns(y, folder):
    """The outcome of all others equals a public covariate."""
    return shown_simulator(Y, y)


def equal_groups(y, folder):
    groups = budget_of().split_by(["one", "two"])
    return [dp.private_counts(lambda y: y, {"y": part}, edges=[0.0], budget=groups[name]) for name, part in (("one", Y), ("two", y.copy()))]  # fmt: skip


def other_budgets(y, folder):
    """Two budgets without a ledger, on the same data."""
    return counts(y, folder), counts(y, folder)


def tuning(step, model, budget):
    step.set_rng(np.random.default_rng(1))
    point = model.initial_point()
    for _ in range(10 * int(budget.expected_draws()) + 10):
        point, _ = step.step(point)


def without_callback(step, model, budget):
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    point = model.initial_point()
    for _ in range(10 * int(budget.expected_draws()) + 2000):
        point, _ = step.step(point)


def second_run(step, model, budget):
    for _ in range(2):
        samplers.sample(model, step, budget, draws=3)


def too_many_chains(step, model, budget):
    samplers.sample(model, step, budget, draws=3, chains=2)


def misused(how, epsilon, name, y, folder):
    """An error of the budget, raised while chains run."""
    model, budget = samplers.normal_model(y[-1]), budget_of(epsilon, accountant="rdp")
    how(samplers.build(name, model, budget, y[-1]), model, budget)


def checked(name, y, folder):
    """A check that fails on some data makes records impossible; it is no error, nor a word of its own."""

    def logp(value, mu):
        fine = pm.math.abs(value * mu) < 100
        return pm.distributions.dist_math.check_parameters(-((value - mu) ** 2), fine, msg="far")

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu", 0, 2), logp=logp, observed=y)
    budget = budget_of(8.0, accountant="rdp")
    built = samplers.build(name, model, budget, "checked", y[-1])
    return samplers.sample(model, built, budget, draws=5)["posterior"]


def much_noise(scale, y, folder):
    """Noise that follows the sensitivity is large on long moves: whether that is an error must not follow from the log-ratio."""
    model, budget = samplers.normal_model(y[-1]), budget_of(math.inf)
    options = {"clip_bound": 2000.0, "noise_scale": scale}
    built = samplers.build("penalty", model, budget, y[-1], **options)
    return samplers.sample(model, built, budget, draws=5)["posterior"]


MISUSES = ((tuning, 0.5), (without_callback, 0.5), (second_run, 8.0), (too_many_chains, 8.0), (second_run, 1e-4))  # fmt: skip
EQUAL = {"one value": np.append(Y[:-1], 0.5)}
#: What may be refused, for all data or for none.
REFUSED = {
    "line 4: initial value": Cell(initial, neighbours=SOME),
    "line 5: equal columns": Cell(equal_columns, Y.copy(), EQUAL),  # a covariate has these values, which is public
    "line 5: equal groups": Cell(equal_groups, neighbours=EQUAL, fast=1),
    "line 2: other budgets": Cell(other_budgets, *ALL_EQUAL, fast=1),
    **{f"{how.__name__} {epsilon}": Cell(functools.partial(misused, how, epsilon, "penalty"), neighbours=SOME, fast=1) for how, epsilon in MISUSES},
    **{f"{name}: {how.__name__} {epsilon}": Cell(functools.partial(misused, how, epsilon, name), neighbours=ONE) for how, epsilon in MISUSES[:2] for name in ("Barker on batches", "HMC")},
    **{f"{name}: checked": Cell(functools.partial(checked, name), neighbours=SOME) for name in ("penalty", "SGHMC")},
    **{f"noise {scale:g}": Cell(functools.partial(much_noise, scale), neighbours=SOME, fast=1) for scale in (2.0, 76.0, 80.0, 120.0)},
}  # fmt: skip
CELLS |= REFUSED


# ---------------------------------------------------------------- the audit


def audit(cell, folder, most=None):
    """Record a call and replay it; each run is that of a program that has not seen such data."""

    def call(data):
        del ledger_file.TEMPORARY[:]
        return cell.call(data, folder)

    if cell.call in (ppc, compare):
        released()  # not a part of the call
    private = [
        v for array in (X, Y) if any(array is d for d in _arrays(cell.data)) for v in array[:-1]
    ]
    return replayed(call, cell.data, dict([*cell.neighbours.items()][:most]), private)


def _arrays(data):
    return data if isinstance(data, tuple) else (data,)


def check(name, folder, most=None):
    run, leaks = audit(CELLS[name], folder, most)
    if name not in REFUSED:
        assert run.noisy and {"noise", "claim"} <= {event[0] for event in run.events}
    assert not leaks, leaks


@pytest.mark.parametrize("name", [n for n, cell in CELLS.items() if cell.fast])
def test_only_what_was_paid_for_differs(name, tmp_path):
    check(name, tmp_path, CELLS[name].fast)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.long] if cell.fast else [])  # some neighbours by default
        for n, cell in CELLS.items()
        if cell.fast < len(cell.neighbours)
    ],
)
def test_only_what_was_paid_for_differs_in_full(name, tmp_path):
    check(name, tmp_path)


# ---------------------------------------------------------------- planted leaks


def leaking(how):
    """A count that lets out more than it paid for, in one way."""

    def call(y, folder):
        largest = float(np.max(y))
        if how == "read before the claim":
            function = RecordFunction(lambda y: y, {"y": y})
            function.total(Bins([np.zeros(1)]))
        elif how == "error" and largest > 1e9:
            raise ValueError("far")
        elif how == "size of the claim":
            return counts(y, folder, 4.0 if largest < 1e9 else 3.0)
        found = counts(y, folder)
        if how == "value in a warning":
            warnings.warn(f"up to {largest:g}", stacklevel=1)
        elif how == "whether it warns" and largest > 1e9:
            warnings.warn("A record is far out.", stacklevel=1)
        elif how == "log":
            logging.getLogger("pymc.dp").debug("up to %g", largest)
        elif how == "print":
            print(f"{largest:g}")
        elif how == "seed":
            np.random.default_rng(int(abs(largest) % 1000))
        elif how == "another claim" and largest > 1e9:
            counts(y, folder)
        elif how == "attribute":
            return found, xr.Dataset(attrs={"largest": largest})
        elif how == "coordinate":
            return found, xr.Dataset(coords={"draw": [largest]})
        elif how == "type":
            return found, np.zeros(2, "f4" if largest > 1e9 else "f8")
        elif how == "note":
            error = ValueError("a")
            error.add_note(f"{largest}")
            raise error
        elif how == "file":
            xr.Dataset({"a": largest}).to_netcdf(folder / "a.nc")
            return found, xr.load_dataset(folder / "a.nc")
        return found

    return call


LEAKS = (
    "read before the claim", "error", "size of the claim", "value in a warning", "whether it warns", "log", "print",
    "seed", "another claim", "attribute", "coordinate", "type", "note", "file",
)  # fmt: skip


@pytest.mark.parametrize("how", LEAKS)
def test_planted_leaks_are_found(how, tmp_path):
    leaks = audit(Cell(leaking(how), neighbours={"1e300": ANY["1e+300"]}), tmp_path)[1]
    assert set(leaks) == {"before payment" if how == "read before the claim" else "1e300"}


def test_without_a_leak_none_is_found(tmp_path):
    assert audit(Cell(leaking("none"), neighbours=ANY), tmp_path)[1] == {}


def test_a_noisy_number_that_is_not_given_back_is_found(tmp_path):
    """Control of the doors: the exact sum differs."""
    one, other = (recorded(lambda y=y: counts(y, tmp_path), Y[:-1]) for y in (Y, ANY["-inf"]))
    with pytest.raises(Leak, match="result"):
        check_equal(one, other)


class Leaking(dp.DPBarker):
    """A sampler whose statistics, or log, follow from the data."""

    def transition(self, theta):
        largest = float(np.max(np.abs(self.likelihood.logp(theta))))
        logging.getLogger("pymc.dp").debug("far" if largest > 1e9 else "near")
        return super().transition(theta)


def test_a_sampler_that_leaks_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(SAMPLERS, "Leaking", (Leaking, samplers.WALK))
    cell = Cell(functools.partial(step, "Leaking"), neighbours={"1e300": ANY["1e+300"]})
    assert "logged differs" in audit(cell, tmp_path)[1]["1e300"]
