"""kill -9 at any moment: what was read is claimed, what is claimed stays claimed, and a restart keeps to what is left."""

import os
import random
import signal
import sqlite3
import time

from contextlib import closing

import pytest

from pymc_dp import DPSGHMC, Ledger, PrivacyBudget
from pymc_dp.privacy.accounting.calibration import epsilon_of
from pymc_dp.privacy.budget.claims import BudgetTerms
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from tests.faults.watching import Program, accesses, check_penalty_chains, held, watched
from tests.hosting.test_hosting import make_step, run

DELTA = 1e-5
FORKED = {"chains": 2, "cores": 2, "mp_ctx": "fork"}
ONE_BY_ONE = {"chains": 2, "cores": 1}


@pytest.fixture
def model(normal_model):
    """Compiled here, and not in every program."""
    budget = PrivacyBudget(3.0, DELTA, chains=2)
    run(normal_model, budget, make_step(normal_model, budget), chains=1, draws=5)
    return normal_model


def sampling(model, ledger, log, hosting, hold=None):
    """What a user's program does; returns the number of draws."""
    with watched(log, hold):
        budget = PrivacyBudget(3.0, DELTA, chains=2, ledger=ledger)
        idata = run(model, budget, make_step(model, budget), **hosting)
    return idata.posterior.sizes["draw"]


def n_reads(log):
    return sum(map(len, accesses(log).values()))


def settle(log):
    """Wait until workers without a parent have come to rest."""
    before = -1
    while (now := n_reads(log)) != before:
        before = now
        time.sleep(0.05)


def check_account(ledger, epsilon=3.0):
    with closing(sqlite3.connect(ledger)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    claims = Ledger(ledger).claims()
    assert epsilon_of([a for c in claims for a in c.accesses], DELTA) <= epsilon
    return len(claims)


MOMENTS = [random.Random(i).randint(1, 120) for i in range(3)]
MOMENTS = [MOMENTS[0], *(pytest.param(moment, marks=pytest.mark.slow) for moment in MOMENTS[1:])]


@pytest.mark.parametrize("hosting", [FORKED, ONE_BY_ONE], ids=["fork", "sequential"])
@pytest.mark.parametrize("reads", MOMENTS)
def test_parent_killed(model, tmp_path, hosting, reads):
    """Its workers do not go on reading without it, and a restart touches nothing that is not paid for."""
    ledger, log = tmp_path / "a.ledger", tmp_path / "accesses"
    with Program(sampling, model, ledger, log, hosting) as program:
        assert program.wait_until(lambda: n_reads(log) >= reads)
        program.kill()
        settle(log)
        assert n_reads(log) >= reads
    check_penalty_chains(ledger, log)
    claims, read = check_account(ledger), n_reads(log)
    assert 1 <= claims <= 2
    again = tmp_path / "accesses of the restart"
    with Program(sampling, model, ledger, again, ONE_BY_ONE) as restart:
        kind, message = restart.outcome()
    assert kind == "PrivacyBudgetExhausted" and "allows epsilon = 3 at delta" in message
    assert n_reads(again) == 0 and n_reads(log) == read and check_account(ledger) == claims


@pytest.mark.parametrize(
    "method, reads",
    [("fork", 14), pytest.param("spawn", 20, marks=pytest.mark.slow)],
)
def test_worker_killed(model, tmp_path, method, reads):
    """The run ends in an error, its claims stay; the workers that are left do not overspend either."""
    ledger, log = tmp_path / "a.ledger", tmp_path / "accesses"
    hosting = {**FORKED, "mp_ctx": method}
    with Program(sampling, model, ledger, log, hosting, reads) as program:
        assert program.wait_until(lambda: held(log))
        assert held(log) != program.pid
        os.kill(held(log), signal.SIGKILL)
        kind, _ = program.outcome()
    assert kind != "returned"
    check_penalty_chains(ledger, log)
    claims = check_account(ledger)
    assert claims == len(accesses(log))
    again = tmp_path / "accesses of the restart"
    with Program(sampling, model, ledger, again, FORKED) as restart:
        kind, message = restart.outcome()
    assert kind == "PrivacyBudgetExhausted" and "allows epsilon = 3 at delta" in message
    assert n_reads(again) == 0 and check_account(ledger) == claims


def test_a_budget_whose_program_was_killed_is_spent(model, tmp_path):
    """Killed in its first of two chains: the budget was claimed whole, and pays for no chain of another one."""
    ledger, log = tmp_path / "a.ledger", tmp_path / "accesses"
    with Program(sampling, model, ledger, log, ONE_BY_ONE, 5) as program:
        assert program.wait_until(lambda: held(log))
        program.kill()
    assert check_account(ledger) == 1
    for k, hosting in enumerate([ONE_BY_ONE, {"chains": 1, "cores": 1}]):
        again = tmp_path / f"accesses of restart {k}"
        with Program(sampling, model, ledger, again, hosting) as restart:
            kind, message = restart.outcome()
        assert kind == "PrivacyBudgetExhausted" and "left: epsilon = 0" in message
        assert n_reads(again) == 0 and check_account(ledger) == 1


@pytest.mark.slow
def test_restart_on_the_remaining_account(model, tmp_path):
    """An account for two slices: one is lost with the program, the second runs to its end, a third is refused."""
    ledger, logs = tmp_path / "a.ledger", [tmp_path / f"accesses {i}" for i in range(3)]
    Ledger(ledger, epsilon=6.0, delta=2 * DELTA)
    with Program(sampling, model, ledger, logs[0], FORKED) as program:
        assert program.wait_until(lambda: len(accesses(logs[0])) == 2)
        program.kill()
    with Program(sampling, model, ledger, logs[1], FORKED) as program:
        kind, draws = program.outcome()
    assert kind == "returned" and draws > 20
    # Two slices of 3 cost less than 5 together, three cost more.
    with Program(sampling, model, ledger, logs[2], ONE_BY_ONE) as program:
        kind, message = program.outcome()
    assert (kind, "account" in message) == ("PrivacyBudgetExhausted", True)
    for log in logs:
        check_penalty_chains(ledger, log)
    check_account(ledger, epsilon=5.0)


def gradients(model, ledger, log):
    budget = PrivacyBudget(1.0, DELTA, chains=2, accountant="rdp", ledger=ledger)
    step = gradient_step(model, budget, log.with_name("while building"))
    step.likelihood._path = log
    return run(model, budget, step, **FORKED).posterior.sizes["draw"]


def gradient_step(model, budget, log):
    with watched(log):
        return DPSGHMC(
            budget=budget, model=model, step_size=lambda t: 0.002, n_steps=3, friction=50.0,
            gradient_clip_bound=2.0, batch_size=40,
        )  # fmt: skip


def test_gradients_are_claimed_before_they_are_read(model, tmp_path):
    """Of fixed cost, so that they can be counted."""
    ledger, log = tmp_path / "a.ledger", tmp_path / "accesses"
    gradient_step(model, None, tmp_path / "while compiling")
    with Program(gradients, model, ledger, log) as program:
        assert program.wait_until(lambda: n_reads(log) >= 8)
        program.kill()
        settle(log)
    claimed = {int(c.process.split(":")[1]): sum(k for _, k in c.accesses) for c in Ledger(ledger).claims()}  # fmt: skip
    found = accesses(log)
    assert found and set(found) <= set(claimed)
    assert all(len(found[pid]) <= claimed[pid] for pid in found)


class Deadly(sqlite3.Connection):
    """A connection whose program is killed before or after a claim is committed."""

    before = True

    def execute(self, sql, *args):
        claimed = sql == "COMMIT" and self.total_changes
        if claimed and self.before:
            os.kill(os.getpid(), signal.SIGKILL)
        done = super().execute(sql, *args)
        if claimed:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def dying(model, ledger, log, before):
    Deadly.before = before
    with pytest.MonkeyPatch.context() as patch:
        connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Deadly))
        sampling(model, ledger, log, ONE_BY_ONE)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_the_commit(model, tmp_path, before):
    """Before it nothing is claimed, and nothing was read: a restart runs in full. After it the claim stays."""
    ledger, log = tmp_path / "a.ledger", tmp_path / "accesses"
    Ledger(ledger, epsilon=3.0, delta=DELTA)
    with Program(dying, model, ledger, log, before) as program:
        assert program.wait_until(lambda: not program._process.is_alive())
    assert n_reads(log) == 0
    assert check_account(ledger) == (0 if before else 1)
    with Program(sampling, model, ledger, log, ONE_BY_ONE) as restart:
        kind, _ = restart.outcome()
    assert kind == ("returned" if before else "PrivacyBudgetExhausted")
    check_penalty_chains(ledger, log)
    assert check_account(ledger) == (2 if before else 1)


def _claim(ledger, label):
    ledger.claim(BudgetTerms("b", 1.0, 1e-6), label, [(Gaussian(50.0), 1.0)])


def _spill(path):
    """Die in a transaction so large that parts of it are in the file already."""
    with pytest.MonkeyPatch.context() as patch:
        connect = sqlite3.connect

        def small(*args, **kwargs):
            db = connect(*args, **kwargs, factory=Deadly)
            db.execute("PRAGMA cache_size = 2")
            return db

        Deadly.before = True
        patch.setattr(sqlite3, "connect", small)
        _claim(Ledger(path), "s" * 400_000)


def test_half_written_claim(tmp_path):
    """What a killed program left in the middle of the file is rolled back by the next one."""
    path = tmp_path / "a.ledger"
    ledger = Ledger(path, epsilon=1.0, delta=1e-6)
    _claim(ledger, "first")
    with Program(_spill, path) as program:
        assert program.wait_until(lambda: not program._process.is_alive())
    assert path.with_name("a.ledger-journal").exists() and path.stat().st_size > 100_000
    assert [c.step for c in ledger.claims()] == ["first"]
    _claim(ledger, "second")
    assert [c.step for c in Ledger(path).claims()] == ["first", "second"]


def _claiming(path, log):
    ledger = Ledger(path)
    with open(log, "ab", buffering=0) as file:
        while True:
            _claim(ledger, "s")
            file.write(b".")  # from here on the data could be read


def test_killed_while_claiming(tmp_path):
    """At twelve random moments: every claim that was granted is in the account."""
    path, log, moments = tmp_path / "a.ledger", tmp_path / "granted", random.Random(3)
    Ledger(path, epsilon=1.0, delta=1e-6)
    log.touch()
    programs = 0
    while programs < 12:
        before = log.stat().st_size
        with Program(_claiming, path, log) as program:
            assert program.wait_until(lambda: log.stat().st_size > before)
            time.sleep(moments.uniform(0, 0.02))
            program.kill()
        programs += 1
        claims, granted = len(Ledger(path).claims()), log.stat().st_size
        assert granted <= claims <= granted + programs
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
