"""Shared fixtures: small models whose posterior is known.

PyMC is imported where it is used: the process that hands out tests to others starts seconds earlier without it.
"""

import contextlib
import gc

import numpy as np
import pytest


def pytest_configure(config):
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # tests run elsewhere
    # Most tests are on few records, with a large epsilon so that chains move; what warns is tested.
    config.addinivalue_line("filterwarnings", "ignore::pymc_dp.errors.WeakGuaranteeWarning")


def pytest_collection_finish():
    """What is imported stays: the garbage collector need not look at it again."""
    gc.freeze()


#: Folders and files of tests, most of whose time would go into compiling.
INTERPRETED = {
    "comparison", "planning", "test_hmc_charges.py", "test_hmc_exactness.py", "test_hmc_paths.py",
    "test_step_properties.py", "test_binding.py", "test_beginners_mistakes.py", "test_memory.py", "test_release_allow_list.py",
    "test_fit_check.py", "test_given_likelihood.py", "test_second_moments.py", "test_unbiased_scores.py",
    "test_hmc_hosting.py", "test_leaks.py", "test_sghmc_charges.py", "test_sghmc_law.py",
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def interpreted(request):
    """By default some models are not compiled by Numba: what it computes is the subject of other tests.

    The slow tests compile them, as users do; but for those that build a model for each of many data sets.
    """
    by_default = "not slow" in request.config.option.markexpr
    place = request.node.nodeid.split("/")
    if "test_replay.py" not in place and (not by_default or INTERPRETED.isdisjoint(place)):
        yield
        return
    from pytensor.compile.mode import Mode

    from pymc_dp.model.compiled_model import CompiledModel

    real, mode = CompiledModel._compile, Mode("py", "fast_compile")

    def compiled(self, theta, rows, log_prior, labels, compile_kwargs=None, **options):
        chosen = {"mode": mode} | dict(compile_kwargs or {})
        return real(self, theta, rows, log_prior, labels, chosen, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledModel, "_compile", compiled)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """What several tests share has bits of its own."""
    from tests.seeded_bits import is_secret, seeded_for

    if fixturedef.scope == "function" or is_secret(fixturedef.baseid):
        return (yield)
    with seeded_for(f"{fixturedef.baseid}::{fixturedef.argname}"):
        return (yield)


@pytest.fixture(autouse=True)
def seeded_bits(request):
    """The noise of a test is that of its last run: see tests/seeded_bits.py."""
    from tests.seeded_bits import is_secret, seeded_for

    with (
        contextlib.nullcontext()
        if is_secret(request.node.nodeid)
        else seeded_for(request.node.nodeid)
    ):
        yield


@pytest.fixture(autouse=True)
def program_is_new(monkeypatch):
    """Each test is a program of its own, in which no other budget was opened."""
    from pymc_dp import ledger_file
    from pymc_dp.privacy.budget import ledger

    opened = []
    for module in (ledger_file, ledger):
        monkeypatch.setattr(module, "TEMPORARY", opened)


@pytest.fixture(scope="module")
def quick_scores():
    """A tenth of the simulated records, and of the warm-up of DPScore: where it does not matter how well chains move."""
    from pymc_dp.planning import local_information
    from pymc_dp.scores import fit_check, score_step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_step, "_WARMUP", 40)
        patch.setattr(fit_check, "_LEAST", 10_000)
        patch.setattr(local_information, "_N_SIMULATED", 2000)
        yield


@pytest.fixture
def normal_model():
    """400 records around 1, unknown mean and known sd; a Deterministic that shows the data and one that does not."""
    import pymc as pm

    from tests.exactness.targets import compiled_once

    y = np.random.default_rng(7).normal(1.0, 1.0, size=400) + 0.123456789
    with pm.Model(coords={"person": [f"patient-{i}" for i in range(400)]}) as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu, 1, observed=pm.Data("y_data", y, dims="person"), dims="person")
        pm.Deterministic("residual", mu - y)
        pm.Deterministic("squared", mu**2)
    with compiled_once("normal_model", only=model):
        yield model


@pytest.fixture
def two_variable_model():
    """Unknown mean and standard deviation."""
    import pymc as pm

    from tests.exactness.targets import compiled_once

    y = np.random.default_rng(8).normal(0.5, 2.0, size=300)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        sigma = pm.HalfNormal("sigma", 5)
        pm.Normal("y", mu, sigma, observed=y)
    with compiled_once("two_variable_model", only=model):
        yield model
