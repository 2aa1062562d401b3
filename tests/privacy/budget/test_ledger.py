"""The ledger: atomic claims from any process, that survive whatever kills them."""

import math
import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys

from contextlib import closing
from pathlib import Path

import pytest

from pymc_dp.acceptance import Penalty
from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.calibration import epsilon_of
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.accounting.filters import RenyiShare
from pymc_dp.privacy.budget.ledger import Ledger, main
from pymc_dp.privacy.mechanisms.mechanism import Decision, Gaussian

TERMS = {"epsilon": 1.0, "delta": 1e-6}


def claim(ledger, accesses, budget="b", step="s", limit=10**9, **kwargs):
    return ledger.claim(budget, step, accesses, **TERMS, accountant="best", limit=limit, **kwargs)


def fits(ledger, accesses):
    """Whether claims one after the other stay within the account."""
    return ledger.account.adaptive.fits(Cost.of(accesses))


def test_claims_add_up_to_the_account_and_no_further(tmp_path):
    ledger = Ledger(tmp_path / "a.ledger", **TERMS)
    access = (Decision(Penalty(1.4), 0.05), 10.0)
    granted = 0
    with pytest.raises(PrivacyBudgetExhausted, match="Largest feasible"):
        while True:
            claim(ledger, [access], budget=f"b{granted % 3}")
            granted += 1
    assert fits(ledger, [access] * granted) and not fits(ledger, [access] * (granted + 1))
    assert len(ledger.claims()) == granted
    assert 1 >= ledger.spent() >= epsilon_of([access] * granted, 1e-6)


def test_a_budget_binds_its_own_claims(tmp_path):
    """A slice of epsilon 1 out of an account of 10."""
    ledger = Ledger(tmp_path / "a.ledger", epsilon=10.0, delta=1e-6)
    access = [(Gaussian(5.0), 1.0)]
    claim(ledger, access)
    with pytest.raises(PrivacyBudgetExhausted, match="The budget allows epsilon = 1"):
        claim(ledger, access)
    claim(ledger, access, budget="another")
    assert len(ledger.claims("b")) == 1


def test_the_message_has_the_feasible_values(tmp_path):
    ledger = Ledger(tmp_path / "a.ledger", **TERMS)
    decision = Decision(Penalty(1.4), 0.05)
    claim(ledger, [(decision, 20.0)])
    with pytest.raises(PrivacyBudgetExhausted) as caught:
        claim(ledger, [(decision, 500.0)], draws=500)
    feasible = int(str(caught.value).split("Largest feasible: ")[1].split()[0])
    assert fits(ledger, [(decision, 20 + feasible)])
    assert not fits(ledger, [(decision, 22 + feasible)])
    for word in ("Spent", "left", "asked", "Nothing was accessed"):
        assert word in str(caught.value)
    assert len(ledger.claims()) == 1


def test_a_check_claims_nothing(tmp_path):
    """It says how many chains there is room for."""
    ledger = Ledger(tmp_path / "a.ledger", **TERMS)
    access = [(Gaussian(10.0), 1.0)]
    most = max(k for k in range(1, 20) if fits(ledger, [(Gaussian(10.0), k)]))
    claim(ledger, access)
    ledger.check(access, "s", most - 1)
    with pytest.raises(PrivacyBudgetExhausted) as caught:
        ledger.check(access, "s", most + 5)
    assert "asked for by s: " in str(caught.value)
    assert f"Largest feasible: {most - 1} chain(s)" in str(caught.value)
    assert len(ledger.claims()) == 1


def test_a_step_has_a_limited_number_of_chains(tmp_path):
    ledger = Ledger(tmp_path / "a.ledger", **TERMS)
    for before in range(3):
        assert claim(ledger, [(Gaussian(100.0), 1.0)], limit=3) == before
    with pytest.raises(PrivacyBudgetExhausted, match=r"3 chain.s. of s have already run"):
        claim(ledger, [(Gaussian(100.0), 1.0)], limit=3)
    claim(ledger, [(Gaussian(100.0), 1.0)], step="other", limit=3)


def test_survives_reopening_and_pickling(tmp_path):
    path = tmp_path / "a.ledger"
    claim(Ledger(path, **TERMS), [(RenyiShare(60.0, 0.3), 1.0)])
    again = Ledger(path)
    assert again.account.epsilon == 1.0
    copy = pickle.loads(pickle.dumps(again))
    assert [c.accesses for c in copy.claims()] == [((RenyiShare(60.0, 0.3), 1.0),)]
    with pytest.raises(LedgerError, match="opened with epsilon = 1"):
        Ledger(path, epsilon=2.0, delta=1e-6)


def _race(path, start, results):
    ledger = Ledger(path)
    start.wait()
    granted = 0
    try:
        while True:
            claim(ledger, [(Gaussian(30.0), 1.0)], budget=str(os.getpid()))
            granted += 1
    except PrivacyBudgetExhausted:
        results.put(granted)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_racing_processes_never_exceed_the_account(tmp_path, method):
    path = tmp_path / "a.ledger"
    ledger = Ledger(path, **TERMS)
    context = multiprocessing.get_context(method)
    start, results = context.Event(), context.Queue()
    workers = [context.Process(target=_race, args=(path, start, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    start.set()
    granted = sum(results.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    assert granted == len(ledger.claims())
    assert fits(ledger, [(Gaussian(30.0), granted)])
    assert not fits(ledger, [(Gaussian(30.0), granted + 1)])


def _open(path, start, results):
    start.wait()
    claim(Ledger(path, **TERMS), [(Gaussian(30.0), 1.0)])
    results.put(True)


def test_racing_processes_open_one_account(tmp_path):
    """Who comes second finds the account of who came first, whole; no file is left over."""
    context = multiprocessing.get_context("fork")
    for turn in range(5):
        path = tmp_path / f"{turn}.ledger"
        start, results = context.Barrier(4), context.Queue()
        workers = [context.Process(target=_open, args=(path, start, results)) for _ in range(4)]
        for worker in workers:
            worker.start()
        assert [results.get(timeout=60) for _ in workers] == [True] * 4
        for worker in workers:
            worker.join()
        assert len(Ledger(path).claims()) == 4
    assert len(list(tmp_path.iterdir())) == 5


def test_a_new_file_is_like_others(tmp_path):
    """Readable for whom the user's files are, under a name with any characters, where a link points."""
    (tmp_path / "a link").symlink_to(tmp_path / "100 %? #1.ledger")
    claim(Ledger(tmp_path / "a link", **TERMS), [(Gaussian(30.0), 1.0)])
    assert len(Ledger(tmp_path / "100 %? #1.ledger").claims()) == 1
    (tmp_path / "other").touch()
    assert (tmp_path / "a link").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 3


def _claim_and_die(path):
    claim(Ledger(path), [(Gaussian(10.0), 1.0)])
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_its_claim_spent(tmp_path):
    path = tmp_path / "a.ledger"
    ledger = Ledger(path, **TERMS)
    worker = multiprocessing.get_context("fork").Process(target=_claim_and_die, args=(path,))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    assert len(ledger.claims()) == 1


def test_temporary_ledgers_are_removed_by_their_owner_only():
    ledger = Ledger(**TERMS)
    path = ledger.path
    child = multiprocessing.get_context("fork").Process(target=ledger._finalizer)
    child.start()
    child.join()
    assert os.path.exists(path)
    del ledger
    assert not os.path.exists(os.path.dirname(path))


def test_read_while_another_program_writes(tmp_path, monkeypatch):
    """Listing an account takes no lock that a writer holds, so no process waits; claiming does."""
    path = tmp_path / "a.ledger"
    claim(Ledger(path, **TERMS), [(Gaussian(10.0), 1.0)])
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k | {"timeout": 0.1}))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger = Ledger(path)
        assert len(ledger.claims()) == 1 and "1 claim" in str(ledger)
        with pytest.raises(LedgerError, match="locked"):
            claim(ledger, [(Gaussian(10.0), 1.0)])
    assert len(ledger.claims()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any file")
def test_read_a_file_that_must_not_be_written(tmp_path):
    path = tmp_path / "a.ledger"
    claim(Ledger(path, **TERMS), [(Gaussian(10.0), 1.0)])
    path.chmod(0o444)
    ledger = Ledger(path)
    assert len(ledger.claims()) == 1
    with pytest.raises(LedgerError, match="writable"):
        claim(ledger, [(Gaussian(10.0), 1.0)])


class TestUnusableFiles:
    """Without a ledger nothing is granted, and the error says what to look at."""

    def test_not_a_database(self, tmp_path):
        path = tmp_path / "a.ledger"
        path.write_text("dear diary, " * 100)
        with pytest.raises(LedgerError, match="cannot be used"):
            Ledger(path, **TERMS)

    def test_missing_folder(self, tmp_path):
        with pytest.raises(LedgerError, match="folder"):
            Ledger(tmp_path / "none" / "a.ledger", **TERMS)

    def test_truncated(self, tmp_path):
        path = tmp_path / "a.ledger"
        ledger = Ledger(path, **TERMS)
        claim(ledger, [(Gaussian(10.0), 1.0)])
        path.write_bytes(path.read_bytes()[:6000])
        with pytest.raises(LedgerError):
            claim(ledger, [(Gaussian(10.0), 1.0)])

    def test_deleted_in_between(self, tmp_path):
        path = tmp_path / "a.ledger"
        ledger = Ledger(path, **TERMS)
        path.unlink()
        with pytest.raises(LedgerError):
            claim(ledger, [(Gaussian(10.0), 1.0)])
        assert not path.exists()

    def test_no_terms(self, tmp_path):
        with pytest.raises(LedgerError, match="no account"):
            Ledger(tmp_path / "a.ledger")

    @pytest.mark.parametrize(
        "epsilon, delta", [(0, 1e-6), (-1, 1e-6), (1, -1e-9), (1, 1), (math.nan, 1e-6)]
    )
    def test_invalid_terms(self, tmp_path, epsilon, delta):
        with pytest.raises(ValueError, match=r"epsilon|delta"):
            Ledger(tmp_path / "a.ledger", epsilon=epsilon, delta=delta)

    def test_invalid_adjacency(self, tmp_path):
        with pytest.raises(ValueError, match=r"adjacency must be .* got 'swap'"):
            Ledger(tmp_path / "a.ledger", **TERMS, adjacency="swap")
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_command_line(tmp_path):
    path = tmp_path / "a.ledger"
    claim(Ledger(path, **TERMS), [(Decision(Penalty(1.4), 0.05), 10.0)], step="DPPenalty[mu]")
    command = [str(Path(sys.executable).with_name("pymc-dp-ledger"))]
    listing = subprocess.run([*command, path], capture_output=True, text=True, check=True)
    assert listing.stderr == ""
    for part in ("epsilon = 1", "1 claim", "DPPenalty[mu]", "10 x decision by penalty(s=1.4)"):
        assert part in listing.stdout
    assert main([str(tmp_path / "none")]) == 1 and not (tmp_path / "none").exists()
    assert main([]) == 2


def test_claims_without_protection(tmp_path):
    """They cost nothing, whatever they are, and every chain writes one."""
    terms = {"epsilon": math.inf, "delta": 1e-6}
    ledger = Ledger(tmp_path / "a.ledger", **terms)
    for before in range(3):
        assert ledger.claim("b", "s", (), **terms, accountant="best", limit=3, plan=()) == before
    assert len(ledger.claims("b")) == 3 and ledger.spent() == math.inf
