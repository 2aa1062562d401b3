"""What can happen to the file that remembers, and to the clock: no data without a claim, and no claim forgotten."""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from pymc_dp import Ledger, PrivacyBudget, ledger_file
from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted
from pymc_dp.privacy.budget.claims import BudgetTerms
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from tests.faults.watching import Program, accesses, watched
from tests.hosting.test_hosting import make_step, run

ROOT = Path(__file__).parents[2]
TERMS = {"epsilon": 8.0, "delta": 2e-5}
OTHER = {"epsilon": 5.0, "delta": 1e-5}
SLICE = {"epsilon": 3.0, "delta": 1e-5}


@pytest.fixture
def model(normal_model):
    """Compiled here, and not in every program."""
    make_step(normal_model, PrivacyBudget(**SLICE, chains=2)).budget.plan()
    return normal_model


@pytest.fixture
def path(tmp_path):
    """A ledger with one claim that has not used it up."""
    path = tmp_path / "a.ledger"
    claim(Ledger(path, **TERMS))
    return path


def claim(ledger, noise=30.0):
    return ledger.claim(BudgetTerms("b", **OTHER), "s", [(Gaussian(noise), 1.0)])


def first_draw(model, ledger, log, prepare):
    """A chain as PyMC begins it, in a program in which something goes wrong before; no more, as PyMC and Numba need files, too."""
    with watched(log):
        budget = PrivacyBudget(**SLICE, chains=2, ledger=ledger)
        step = make_step(model, budget)
        point = model.initial_point()
        prepare()
        step.set_rng(np.random.default_rng(1))
        step.stop_tuning()
        return len(step.step(point)[1])


def refused(*arguments):
    """The message of a program that must not touch the data."""
    with Program(first_draw, *arguments) as program:
        kind, message = program.outcome()
    assert kind == "LedgerError" and not accesses(arguments[2])
    return message


# ---------------------------------------------------------------- full disk


class TestFullDisk:
    """The claim fails, so nothing is read; the account can be read, and goes on when there is room again."""

    @pytest.mark.slow
    @pytest.mark.parametrize("room", [0, 600])
    def test_no_room_for_the_claim(self, model, path, tmp_path, room):
        """Neither in the ledger nor, with less room than a page, in its journal."""

        def fill_up():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

        assert "disk is not full" in refused(model, path, tmp_path / "accesses", fill_up)
        assert len(Ledger(path).claims()) == 1
        claim(Ledger(path))
        assert len(Ledger(path).claims()) == 2

    @pytest.mark.slow
    def test_a_file_system_that_is_full(self, tmp_path):
        """A real one, of 96 KiB, in which claims are made until it has no page left; then it grows."""
        mount = f"mount -t tmpfs -o size=96k none {tmp_path}"
        alone = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
        try:
            subprocess.run([*alone, mount], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no file systems of one's own here")
        python = f"exec '{sys.executable}' -m tests.faults.full_disk {tmp_path}"
        found = subprocess.run(
            [*alone, f"{mount} && {python}"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        message, made, kept, later = found.stdout.splitlines()
        assert "database or disk is full" in message and "no data are accessed" in message
        assert 10 < int(made) == int(kept) == int(later) - 1

    def test_no_room_for_a_new_ledger(self, tmp_path):
        """Neither an account nor half of one is left behind."""

        def fill_up_and_open(path):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            PrivacyBudget(**SLICE, chains=1, ledger=path)

        with Program(fill_up_and_open, tmp_path / "new.ledger") as program:
            kind, message = program.outcome()
        assert kind == "LedgerError" and "disk is not full" in message
        assert not list(tmp_path.iterdir())
        assert not Ledger(tmp_path / "new.ledger", **TERMS).claims()


# ---------------------------------------------------------------- read-only

NOBODY = 65534


def give_up_rights():
    if os.geteuid() == 0:
        os.setuid(NOBODY)


@pytest.fixture
def public_folder():
    """That somebody else can enter: pytest's own folders let nobody in."""
    folder = Path(tempfile.mkdtemp(prefix="pymc_dp_test_"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_read_only(model, public_folder, what):
    """It can be listed; it grants nothing, also where only the folder is closed and no journal can be written."""
    path, log = public_folder / "a.ledger", public_folder / "accesses"
    claim(Ledger(path, **TERMS))
    log.touch()
    log.chmod(0o666)
    path.chmod(0o444 if what == "file" else 0o666)
    public_folder.chmod(0o777 if what == "file" else 0o555)

    def listing():
        give_up_rights()
        ledger = Ledger(path)
        return len(ledger.claims()), "1 budget" in str(ledger), ledger.spent() > 0

    with Program(listing) as program:
        assert program.outcome() == ("returned", (1, True, True))
    assert "writable" in refused(model, path, log, give_up_rights)
    assert len(Ledger(path).claims()) == 1


def test_nothing_wrong(model, path, tmp_path):
    """The programs above would have run."""
    log = tmp_path / "accesses"
    with Program(first_draw, model, path, log, lambda: None) as program:
        assert program.outcome() == ("returned", 1)
    assert accesses(log) and len(Ledger(path).claims()) == 2


# ---------------------------------------------------------------- damaged, or another program's


def overwrite(path, start, end=None):
    raw = bytearray(path.read_bytes())
    raw[start:end] = os.urandom(len(raw[start:end]))
    path.write_bytes(raw)


def edit(path, statement, *values):
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement, values)
        db.commit()


DAMAGE = {
    "header": lambda path: overwrite(path, 0, 100),
    "first page": lambda path: overwrite(path, 100, 4096),
    "all pages but the first": lambda path: overwrite(path, 4096),
    "claims table gone": lambda path: edit(path, "DROP TABLE claims"),
    "account row gone": lambda path: edit(path, "DELETE FROM account"),
    "epsilon of the account": lambda path: edit(path, "UPDATE account SET epsilon = 'lots'"),
    "adjacency of the account": lambda path: edit(path, "UPDATE account SET adjacency = 'none'"),
    "composition of the account": lambda path: edit(path, "UPDATE account SET composition = 'gaussian'"),
    "columns of budgets": lambda path: edit(path, "ALTER TABLE budgets DROP COLUMN process"),
    "account of another program": lambda path: edit(path, "ALTER TABLE account RENAME COLUMN epsilon TO owner"),
    "text for a number": lambda path: edit(path, "UPDATE budgets SET epsilon = 'lots'"),
    "negative epsilon": lambda path: edit(path, "UPDATE budgets SET epsilon = -1.0"),
    "a large delta": lambda path: edit(path, "UPDATE budgets SET delta = 7.0"),
}  # fmt: skip
#: Of the claims within a budget, which the account does not need.
DAMAGED_CLAIMS = {
    "text": "substr(accesses, 5)", "number": "replace(accesses, '30.0', '-1.0')", "no number": "replace(accesses, '30.0', 'NaN')",
    "count": "replace(accesses, '1.0]', '-1.0]')", "no mechanism": "'[[\"30\", 1.0]]'", "nothing": "'null'",
    "mechanism of a later version": "replace(accesses, 'Gaussian', 'Laplacian')",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED_CLAIMS)
def test_damaged_claims_of_a_budget(path, damage):
    edit(path, f"UPDATE claims SET accesses = {DAMAGED_CLAIMS[damage]}")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="restore a copy"):
        claim(Ledger(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged(model, path, tmp_path, damage):
    """Refused as a ledger, before any data are read, and left as it is for somebody to look at."""
    DAMAGE[damage](path)
    before = path.read_bytes()
    with watched(tmp_path / "accesses"), pytest.raises(LedgerError) as caught:
        budget = PrivacyBudget(**SLICE, chains=2, ledger=path)
        run(model, budget, make_step(model, budget))
    for part in (str(path), "pymc_dp ledger and of no later version", "restore a copy"):
        assert part in str(caught.value)
    assert not accesses(tmp_path / "accesses")
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["header", "all pages but the first", "text for a number"])
def test_damaged_during_a_run(model, path, tmp_path, damage):
    """Between the first chain and the second."""
    log = tmp_path / "accesses"
    with watched(log):
        budget = PrivacyBudget(**SLICE, chains=2, ledger=path)
        step = make_step(model, budget)
        run(model, budget, step, chains=1)
        read = sum(map(len, accesses(log).values()))
        DAMAGE[damage](path)
        with pytest.raises(LedgerError, match=r"a\.ledger"):
            run(model, budget, step, chains=1)
    assert read == sum(map(len, accesses(log).values())) > 0


def test_emptied(path):
    """A file of no bytes was a ledger: to open a new account in it would forget what was spent."""
    path.write_bytes(b"")
    for opened in (lambda: PrivacyBudget(**SLICE, chains=1, ledger=path), lambda: Ledger(path)):
        with pytest.raises(LedgerError, match=r"a\.ledger .* holds no account .* Restore a copy"):
            opened()
    assert path.stat().st_size == 0


def test_gone(path):
    """Moved away while a program runs: it must not go on with an empty one."""
    ledger = Ledger(path)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(LedgerError, match=r"a\.ledger"):
        claim(ledger)
    assert not path.exists()


def test_another_programs_database(tmp_path):
    """Neither used nor changed."""
    path = tmp_path / "patients.sqlite"
    edit(path, "CREATE TABLE patients (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="patients"):
        Ledger(path, **TERMS)
    assert path.read_bytes() == before


@pytest.mark.parametrize("where", ["/dev/null", "/dev/full"])
def test_devices(where):
    """They take everything and keep nothing."""
    with pytest.raises(LedgerError, match=where):
        claim(Ledger(where, **TERMS))


# ---------------------------------------------------------------- the clock


class Jumping(datetime):
    """A clock that goes back by 30 years and ahead by 1000 in turn."""

    calls = 0

    @classmethod
    def now(cls, tz=None):
        cls.calls += 1
        return datetime.now(tz) + timedelta(days=(-30 if cls.calls % 2 else 1000) * 365)


@pytest.mark.parametrize("hosting", [{"cores": 1}, {"cores": 2, "mp_ctx": "fork"}], ids=str)
def test_the_clock_jumps(model, tmp_path, monkeypatch, hosting):
    """What is granted does not depend on the time, and dates put no claim before or after its turn."""
    real, ticks = time.time, iter(np.random.default_rng(5).uniform(-1e9, 1e9, size=100_000))
    monkeypatch.setattr(ledger_file, "datetime", Jumping)
    monkeypatch.setattr(time, "time", lambda: real() + next(ticks))
    ledger = Ledger(tmp_path / "a.ledger", **SLICE)
    budget = PrivacyBudget(**SLICE, chains=2, ledger=ledger)
    idata = run(model, budget, make_step(model, budget), **hosting)
    draws, expected = idata.posterior.sizes["draw"], budget.expected_draws()
    assert idata.posterior.sizes["chain"] == 2 and 0.5 * expected < draws < 1.5 * expected
    assert draws == min(budget.report().draws) and not np.any(idata.sample_stats["exhausted"])
    assert 0.999 * 3 < budget.spent() <= 3 and len(ledger.claims()) == 2
    again = PrivacyBudget(**SLICE, chains=1, ledger=ledger)
    with pytest.raises(PrivacyBudgetExhausted, match="account"):
        run(model, again, make_step(model, again), chains=1)
    years = {c.created[:4] for c in ledger.claims()}
    assert all(abs(int(y) - datetime.now().year) >= 29 for y in years)  # the clock did jump
    assert "1 budget(s)" in str(ledger)
