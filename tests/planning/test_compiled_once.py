"""A second call on the same model compiles nothing, and one on a model that has changed does."""

import copy
import gc
import threading
import weakref

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_dp as dp

from pymc_dp.planning import compiled_once
from pymc_dp.planning.compiled_once import simulator_of

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")


class Made:
    """In place of a Simulator: it compiles nothing."""

    def __init__(self, model, **options):
        self.model, self.options = model, options


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(compiled_once, "Simulator", Made)


def model_of(y=None, n=40):
    y = np.arange(float(n)) if y is None else y
    with pm.Model(coords={"k": range(2)}) as model:
        mu = pm.Normal("mu", 0, pm.Data("scale", 3.0), dims="k")
        x = pm.Data("x", np.linspace(0, 1, len(y)))
        pm.Normal("y", mu[0] + mu[1] * x, 1, observed=y)
        pm.Data("unused", np.zeros(3))
    return model


def test_the_same_model_is_compiled_once(fast):
    model = model_of()
    first = simulator_of(model, covariates="public")
    assert simulator_of(model, covariates="public", records=None, public=()) is first
    with model:
        assert simulator_of(None, covariates="public") is first
    assert simulator_of(model_of(), covariates="public") is not first


def potential(model):
    with model:
        pm.Potential("more", -(model["mu"] ** 2).sum())


def variable(model):
    with model:
        pm.Normal("z", 0, 1)


def deterministic(model):
    with model:
        pm.Deterministic("twice", 2 * model["mu"])


def start(model):
    model.rvs_to_initial_values[model["mu"]] = np.ones(2)


def in_place(model):
    value = model.rvs_to_values[model["y"]]
    value.data[3] += 1e-9


CHANGES = {
    "potential": potential,
    "variable": variable,
    "deterministic": deterministic,
    "initial value": start,
    "observed value": in_place,
    "covariate": lambda model: model.set_data("x", np.linspace(0, 2, 40)),
    "prior": lambda model: model.set_data("scale", 4.0),
    "unused data": lambda model: model.set_data("unused", np.zeros(3)),
    "equal covariate": lambda model: model.set_data("x", np.linspace(0, 1, 40)),
    "the same data again": lambda model: None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_compiled_again(fast, change):
    model = model_of()
    first = simulator_of(model, covariates="public")
    CHANGES[change](model)
    again = simulator_of(model, covariates="public")
    assert (again is first) == (change == "the same data again")
    assert simulator_of(model, covariates="public") is again


def test_a_covariate_that_is_changed_in_place(fast):
    x, y = np.linspace(0, 1, 40), np.zeros(40)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1) * x, 1, observed=y)
    first = simulator_of(model, covariates="public")
    held = [v for v in compiled_once._roots(model) if compiled_once.stored(v).shape == (40,)]
    assert len(held) >= 2
    compiled_once.stored(held[0])[0] += 1
    assert simulator_of(model, covariates="public") is not first


def test_other_arguments(fast):
    model, stand_in = model_of(), model_of()
    seen = [
        simulator_of(model, **given)
        for given in (
            {"covariates": "public"}, {"covariates": stand_in}, {"covariates": model_of()}, {},
            {"covariates": "public", "n_records": 50}, {"covariates": "public", "temperature": 0.5},
        )
    ]  # fmt: skip
    assert len({id(each) for each in seen}) == len(seen)
    first = simulator_of(model, covariates=stand_in)
    assert simulator_of(model, covariates=stand_in) is first
    stand_in.set_data("x", np.zeros(40))
    assert simulator_of(model, covariates=stand_in) is not first


@pytest.mark.parametrize(
    "given", [{"records": np.arange(40)}, {"public": ["scale"]}, {"compile_kwargs": {}}]
)
def test_arguments_with_which_none_is_kept(fast, given):
    model = model_of()
    first = simulator_of(model, covariates="public", **given)
    assert simulator_of(model, covariates="public", **given) is not first


def test_many_data_are_not_kept(fast, monkeypatch):
    model = model_of()
    held = sum(compiled_once.stored(root).nbytes for root in compiled_once._roots(model))
    for most, is_kept in ((held, True), (held - 1, False)):
        monkeypatch.setattr(compiled_once, "_MOST_BYTES", most)
        first = simulator_of(model, covariates="public")
        assert (simulator_of(model, covariates="public") is first) == is_kept


def test_settings_of_the_compiler_and_other_threads(fast):
    model = model_of()
    first = simulator_of(model, covariates="public")
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        assert simulator_of(model, covariates="public") is not first
    first = simulator_of(model, covariates="public")
    found = []
    thread = threading.Thread(target=lambda: found.append(simulator_of(model, covariates="public")))
    thread.start()
    thread.join()
    assert found[0] is not first


def test_copies_have_none_and_a_deleted_model_is_freed(fast):
    model = model_of()
    first = weakref.ref(simulator_of(model, covariates="public"))
    pickled = cloudpickle.loads(cloudpickle.dumps(model))
    assert vars(pickled)[compiled_once._NAME].simulator is None
    shallow = object.__new__(pm.Model)
    vars(shallow).update(vars(model))
    for copied in (shallow, copy.copy(model), pickled):
        assert simulator_of(copied, covariates="public") is not first()
    assert simulator_of(model, covariates="public") is first()
    del model, copied, shallow, pickled
    gc.collect()
    assert first() is None


def test_a_second_plan_compiles_nothing_and_new_data_are_seen(monkeypatch):
    with pm.Model() as model:
        y = pm.Data("data", np.zeros(60))
        pm.Normal("y", pm.Normal("mu", 0, 3), 1, observed=y)
    compiled = []
    build = dp.model.RecordLikelihood._build
    monkeypatch.setattr(
        dp.model.RecordLikelihood, "_build", lambda self, *a: compiled.append(1) or build(self, *a)
    )
    terms = {"delta": 1e-6, "model": model, "random_seed": 1, "progressbar": False}
    first, second = (dp.plan(epsilon=epsilon, **terms) for epsilon in (2.0, 4.0))
    assert len(compiled) == 1 and first.simulator is second.simulator
    pm.set_data(
        {"data": np.zeros(60)}, model
    )  # a plan is refused after it, even if values are equal
    dp.plan(epsilon=2.0, **terms).release(progressbar=False)
    pm.set_data({"data": np.ones(60)}, model)
    third = dp.plan(epsilon=2.0, **terms)
    assert len(compiled) == 3
    at = np.ones(1)
    assert third.simulator.likelihood.logp(at).sum() > first.simulator.likelihood.logp(at).sum()
