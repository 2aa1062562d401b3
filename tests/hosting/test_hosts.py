"""What the host, the user and the model can do to a run: nothing is overspent, no draw that was paid for is lost."""

import logging
import os
import pickle
import signal

import cloudpickle
import numpy as np
import pytest

from pymc_dp import (
    DPPenalty,
    Ledger,
    PrivacyBudget,
    RandomWalk,
    release,
)
from pymc_dp.errors import PrivacyBudgetExhausted
from tests.audit.test_errors_on_private_data import SECRET, model_of
from tests.faults.watching import FORK, Program, Watched, accesses, check_penalty_chains, watched
from tests.hosting.test_hosting import make_step, run

FORKED = {"cores": 2, "mp_ctx": "fork"}


@pytest.fixture
def model(normal_model):
    """Compiled here, and not in every program."""
    budget = PrivacyBudget(3.0, 1e-5, chains=2)
    run(normal_model, budget, make_step(normal_model, budget), chains=1, draws=5)
    return normal_model


def n_reads(log):
    return sum(map(len, accesses(log).values()))


def check(budget, log, claims, epsilon=3.0):
    check_penalty_chains(budget.ledger.path, log)
    assert len(budget.ledger.claims()) == claims
    assert budget.spent() <= epsilon


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "accesses"
    with watched(path):
        yield path


# ---------------------------------------------------------------- more chains than cores, more programs than one


@pytest.mark.slow
def test_eight_chains_on_two_cores(model, tmp_path, log):
    """Each has its share, and the last two pairs, which begin when the first are long through, lose nothing."""
    budget = PrivacyBudget(6.0, 1e-5, chains=8, ledger=tmp_path / "a.ledger")
    step = make_step(model, budget)
    budget.plan()  # here, and not in each worker
    idata = run(model, budget, step, chains=8, draws=250, **FORKED)
    assert idata.posterior.sizes["chain"] == 8
    assert 20 < idata.posterior.sizes["draw"] == min(budget.report().draws) < 250
    assert not np.any(idata.sample_stats["exhausted"])
    assert release(idata, model, budget).posterior.sizes["chain"] == 8
    check(budget, log, 8, epsilon=6.0)
    assert len(accesses(log)) == 8 and budget.spent() > 0.999 * 6
    read = n_reads(log)
    with pytest.raises(PrivacyBudgetExhausted, match="8 have run"):
        run(model, budget, step, chains=1)
    assert n_reads(log) == read


def _at_once(model, ledger, log, chains, start):
    with watched(log):
        budget = PrivacyBudget(3.0, 1e-5, chains=chains, ledger=ledger)
        step = make_step(model, budget)
        budget.plan()
        start.wait()
        return run(model, budget, step, chains=chains).posterior.sizes["draw"]


@pytest.mark.parametrize("chains", [1, 2])
def test_two_programs_on_one_ledger(model, tmp_path, chains):
    """Both want all of it. Of one chain each, one gets it; of two, none may overspend, whoever claims first."""
    ledger, logs, start = tmp_path / "a.ledger", [tmp_path / n for n in "ab"], FORK.Barrier(2)
    args = [(model, ledger, log, chains, start) for log in logs]
    with Program(_at_once, *args[0]) as one, Program(_at_once, *args[1]) as other:
        outcomes = [one.outcome(), other.outcome()]
    kinds = sorted(kind for kind, _ in outcomes)
    assert kinds[0] == "PrivacyBudgetExhausted"
    for (kind, result), log in zip(outcomes, logs, strict=True):
        check_penalty_chains(ledger, log)
        if kind != "returned":
            assert "allows epsilon = 3 at delta" in result
            assert chains == 2 or not accesses(log)
    assert len(Ledger(ledger).claims()) == chains and Ledger(ledger).spent() <= 3
    if chains == 1:
        assert kinds == ["PrivacyBudgetExhausted", "returned"]


# ---------------------------------------------------------------- what cannot be pickled


def test_a_step_that_cannot_be_pickled(model, log, monkeypatch, caplog):
    """PyMC goes on in one process: no worker has claimed anything, so nothing is missing."""

    def refuse(*args, **kwargs):
        raise pickle.PicklingError

    monkeypatch.setattr(cloudpickle, "dumps", refuse)
    budget = PrivacyBudget(3.0, 1e-5, chains=2)
    with caplog.at_level(logging.WARNING):
        idata = run(model, budget, make_step(model, budget), cores=2, mp_ctx="spawn")
    assert "Could not pickle" in caplog.text
    assert idata.posterior.sizes["chain"] == 2
    assert idata.posterior.sizes["draw"] == min(budget.report().draws) > 20
    check(budget, log, 2)
    assert set(accesses(log)) == {os.getpid()}


def test_pickling_fails_in_mid_run(model, log):
    """PyMC throws the draws away and would make them again: they are not paid for twice, and not free either."""
    budget = PrivacyBudget(3.0, 1e-5, chains=2)

    def callback(trace, draw):
        budget(trace, draw)
        if draw.draw_idx == 10:
            raise pickle.PicklingError

    step = make_step(model, budget)
    with pytest.raises(PrivacyBudgetExhausted, match="2 have run"):
        run(model, callback, step, **FORKED)
    check(budget, log, 2)
    assert os.getpid() not in accesses(log)


# ---------------------------------------------------------------- Ctrl-C


def _interrupted(model, ledger, log, hosting):
    with watched(log):
        budget = PrivacyBudget(3.0, 1e-5, chains=2, ledger=ledger)
        step = make_step(model, budget)
        idata = run(model, budget, step, **hosting)
        draws = release(idata, model, budget).posterior.sizes["draw"]
        paid = len(budget.ledger.claims())
        refused = None
        try:
            rest = run(model, budget, step, chains=1).posterior.sizes["draw"]
        except PrivacyBudgetExhausted as error:
            rest, refused = 0, str(error)
        return draws, paid, rest, refused


@pytest.mark.parametrize("hosting", [{"cores": 1}, FORKED], ids=["sequential", "fork"])
def test_interrupted_by_hand(model, tmp_path, hosting):
    """What was drawn can be released. One by one, PyMC goes on with the next chain; in parallel it ends them all."""
    n_processes = hosting["cores"]
    for attempt in range(6):
        ledger, log = tmp_path / f"{attempt}.ledger", tmp_path / f"accesses-{attempt}"
        with Program(_interrupted, model, ledger, log, hosting) as program:
            assert program.wait_until(
                lambda path=log: sum(len(r) >= 17 for r in accesses(path).values()) == n_processes
            )
            os.kill(program.pid, signal.SIGINT)
            kind, result = program.outcome()
        check_penalty_chains(ledger, log)
        assert len(Ledger(ledger).claims()) <= 2 and Ledger(ledger).spent() <= 3
        # In code that PyMC had compiled to record a draw: it takes this for a failure, and keeps nothing.
        if kind != "SystemError":
            break
    assert kind == "returned", result
    draws, paid, rest, refused = result
    assert draws > 5 and paid == len(Ledger(ledger).claims()) == 2
    assert rest == 0 and "is not refunded" in refused


class InterruptedInside(Watched):
    """Ctrl-C arrives in code compiled by Numba, which comes back with this error, and PyTensor with another around it."""

    def log_prior(self, theta):
        if n_reads(self._path) == 30:
            self._note("logp")
            try:
                raise SystemError(
                    "returned a result with an exception set"
                ) from KeyboardInterrupt()
            except SystemError as error:
                raise SystemError(f"{error}: apply node that caused the error")
        return self._likelihood.log_prior(theta)


def test_interrupted_in_compiled_code(model, log):
    """The draws before it are paid for, and kept like those of any other interruption."""
    budget = PrivacyBudget(3.0, 1e-5, chains=1)
    step = make_step(model, budget)
    inside = InterruptedInside(step.likelihood._likelihood, log)
    object.__setattr__(step, "likelihood", inside)
    idata = run(model, budget, step, chains=1)
    assert 25 < idata.posterior.sizes["draw"] < 31
    assert release(idata, model, budget).posterior.sizes["draw"] > 25
    check(budget, log, 1)


# ---------------------------------------------------------------- a model that raises


class Failing(Watched):
    """Raises where it is read for the twentieth time in a process, if it is that of a certain chain."""

    def logp(self, theta):
        self._note("logp")
        mine = accesses(self._path)
        if len(mine[os.getpid()]) >= 20 and (len(mine) == 1 or min(mine) == os.getpid()):
            raise ArithmeticError("the model cannot go on")
        return self._likelihood.logp(theta)


@pytest.mark.parametrize("hosting", [{"cores": 1}, FORKED], ids=["first chain", "one worker"])
def test_the_model_raises(model, tmp_path, log, hosting):
    """What was claimed stays claimed, what was not can still be used."""
    budget = PrivacyBudget(3.0, 1e-5, chains=2, ledger=tmp_path / "a.ledger")
    step = make_step(model, budget)
    sound = step.likelihood
    object.__setattr__(step, "likelihood", Failing(sound._likelihood, log))
    with pytest.raises(Exception, match="the model cannot go on"):
        run(model, budget, step, **hosting)
    claims = len(budget.ledger.claims())
    assert claims == len(accesses(log)) and claims in ((1,) if hosting["cores"] == 1 else (1, 2))
    check(budget, log, claims)
    object.__setattr__(step, "likelihood", sound)
    if claims == 1:
        assert run(model, budget, step, chains=1).posterior.sizes["draw"] > 20
    with pytest.raises(PrivacyBudgetExhausted, match="2 have run"):
        run(model, budget, step, chains=1)
    check(budget, log, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # that Numba cannot compile it
def test_message_of_an_error_of_a_worker(caplog):
    """It depends on private values: the user learns that the model failed, and with what kind of error."""
    own = model_of(tolerates=0.2)
    budget = PrivacyBudget(30.0, 1e-5, chains=2)
    text = ""
    try:
        with own:
            step = DPPenalty(budget=budget, clip_bound=1.0, proposal=RandomWalk(0.02))
        run(own, budget, step, **FORKED)
    except Exception as error:
        while error is not None:
            text += f"{type(error).__name__}: {error}\n"
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert text and budget.ledger.claims()
    assert str(SECRET) not in text + caplog.text
