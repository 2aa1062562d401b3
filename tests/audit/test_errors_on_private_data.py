"""Errors and warnings outside of draws: they show where, never private values, and do not depend on a record."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pytensor.compile.mode import Mode
from pytensor.scalar.basic import BinaryScalarOp, upgrade_to_float
from pytensor.tensor.elemwise import Elemwise

import pymc_dp as dp

from pymc_dp.errors import ModelError
from pymc_dp.model import RecordLikelihood
from pymc_dp.model.sums.row_functions import RowFunction

pytestmark = pytest.mark.filterwarnings("ignore")  # that Numba cannot compile the user's operation

SECRET = 77.125
Y = np.append(np.random.default_rng(4).normal(3.0, 1.0, size=400), SECRET)


class RaisesWithValues(BinaryScalarOp):
    """A likelihood of the user, or its slope, with a check whose message shows the record."""

    __module__ = "pytensor.scalar.told"  # an operation of the user's own would be refused

    def __init__(self, tolerates, is_slope=False):
        super().__init__(upgrade_to_float)
        self.tolerates, self.is_slope = tolerates, is_slope

    def impl(self, value, mu):
        if value == SECRET and abs(mu) > self.tolerates:
            raise ValueError(f"record has {value}")
        return value - mu if self.is_slope else -((value - mu) ** 2) / 2

    def grad(self, inputs, output_gradients):
        slope = RaisesWithValues(self.tolerates, is_slope=True)(*inputs)
        (g,) = output_gradients
        return [-g * slope, g * slope]


def model_of(tolerates):
    operation = Elemwise(RaisesWithValues(tolerates))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.CustomDist("y", mu, logp=lambda y, mu: operation(y, mu), observed=Y,
                      random=lambda mu, rng, size: rng.normal(mu, 1.0, size=size))  # fmt: skip
    return model


def words_of(error):
    """All text that a traceback of an error could show."""
    words, seen = "", set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        words += f"{type(error).__name__}: {error}\n"
        error = error.__cause__ or error.__context__
    return words


def check_withheld(raised, caplog):
    assert isinstance(raised.value, ModelError)
    assert "withheld" in str(raised.value)
    assert "77.125" not in words_of(raised.value) + caplog.text


@pytest.mark.parametrize("method", ["logp", "logp_at", "clipped_grad", "gradients"])
def test_in_an_evaluation(method, caplog):
    likelihood = RecordLikelihood(model_of(1.0), compile_kwargs={"mode": Mode("py", None)})
    more = {"logp_at": ([400],), "clipped_grad": (1.0,)}.get(method, ())
    with pytest.raises(ModelError, match="log-likelihood was evaluated") as raised:
        getattr(likelihood, method)(np.array([8.0]), *more)
    check_withheld(raised, caplog)


@pytest.mark.slow
def test_in_the_noisy_scores(caplog):
    """Of any release: the one at the guess is the first that reads the data."""
    with model_of(1.0), pytest.raises(ModelError, match="log-likelihood was evaluated") as raised:
        dp.sample(epsilon=3.0, delta=1e-6, guess={"mu": 8.0}, random_seed=1, progressbar=False)
    assert raised.value.budget.epsilon == 3.0
    check_withheld(raised, caplog)


@pytest.mark.parametrize("kind", ["parameters", "columns"])
def test_line_13_a_group_that_does_not_exist(kind):
    """Compiled code would read other memory, and an error would show that there is such a record: it is in the last group."""
    group, sums = np.random.default_rng(1).integers(3, size=len(Y)), []
    for wrong in (2, 12345):
        group[5] = wrong
        with pm.Model() as model:
            if kind == "parameters":
                mean = pm.Normal("a", shape=3)[group]
            else:
                table = np.random.default_rng(2).normal(size=(len(Y), 3))
                mean = pm.Normal("b") * pm.Data("x", table)[np.arange(len(Y)), pm.Data("g", group)]
            pm.Normal("y", mean, 1.0, observed=Y)
        likelihood = RecordLikelihood(model)
        sums.append(likelihood.clipped_grad(np.full(likelihood.n_dim, 0.3), 1.0))
    np.testing.assert_array_equal(*sums)


def watched(monkeypatch):
    """Whether a budget had been charged, at each time when a compiled function was given the record with the secret."""
    found, charged, spend = [], [], dp.PrivacyBudget.spend

    def charge(*args, **kwargs):
        charged.append(spend(*args, **kwargs))

    def door(real):
        def read(self, rows):
            given = real(self, rows)
            arrays = given if isinstance(given, list) else given[1][1]
            found.extend(
                bool(charged) for a in arrays if isinstance(a, np.ndarray) and (a == SECRET).any()
            )
            return given

        return read

    monkeypatch.setattr(dp.PrivacyBudget, "spend", charge)
    for name in ("gather", "compiled"):
        monkeypatch.setattr(RowFunction, name, door(getattr(RowFunction, name)))
    return found


@pytest.mark.parametrize("n", [300, 140_000])
def test_line_13_no_record_is_read_before_it_is_paid_for(n, monkeypatch):
    """Compilation, planning and the making of steps use rows of zeros; after the claim the records are read."""
    found = watched(monkeypatch)
    y = np.random.default_rng(1).normal(size=n)
    y[n // 3] = SECRET
    with pm.Model():
        pm.Normal("y", pm.Normal("m"), 1.0, observed=y)
        simulator = dp.Simulator()
        budget = dp.PrivacyBudget(1.0, 1e-6, chains=1)
        options = {"likelihood": simulator.likelihood, "budget": budget, "clip_bound": 1.0}
        dp.DPPenalty(proposal=dp.RandomWalk(0.1), **options)
        plan = dp.plan(epsilon=1.0, delta=1e-6, simulator=simulator, random_seed=1)
        assert not found
        plan.release()
    assert found and all(found)


def test_observed_rows_that_do_not_exist(caplog):
    with pm.Model() as model:
        y = pm.Data("series", Y)
        pm.Normal("y", pm.Normal("m"), 1.0, observed=y[np.array([0, 1, 12345])])
    with pytest.raises(ModelError, match="observed data were computed") as raised:
        RecordLikelihood(model)
    assert "12345" not in words_of(raised.value) + caplog.text


def test_without_a_budget_the_words_are_shown():
    """On public data, to show the user what is wrong."""
    likelihood = RecordLikelihood(model_of(1.0), private=False, compile_kwargs={"mode": Mode("py", None)})  # fmt: skip
    with pytest.raises(Exception, match=r"record has 77\.125"):
        likelihood.logp(np.array([8.0]))
