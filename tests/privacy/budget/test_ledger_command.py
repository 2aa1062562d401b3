"""The command ``pymc-dp-ledger``: what an account says, without PyMC and SciPy."""

import json
import math
import sqlite3
import subprocess
import sys

from contextlib import closing

import pytest

from pymc_dp.errors import LedgerError
from pymc_dp.ledger_file import LedgerFile, main
from pymc_dp.privacy import Gaussian
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.ledger import Ledger


@pytest.fixture(params=["basic", "gaussian"])
def ledger(tmp_path, request):
    """Two budgets, one with two claims, and a release by another tool."""
    ledger = Ledger(tmp_path / "a.ledger", epsilon=1.0, delta=1e-6, composition=request.param)
    accountant = "gaussian" if request.param == "gaussian" else "best"
    for name, epsilon in (("mean age", 0.25), ("mean stay", 0.1)):
        budget = PrivacyBudget(epsilon, 1e-7, chains=1, ledger=ledger, accountant=accountant)
        budget.spend(name, [(Gaussian(400.0), 1)])
    budget.spend("again", [(Gaussian(500.0), 2)])
    ledger.record(epsilon=0.05, note="count, by OpenDP")
    return ledger


def test_what_was_spent_by_whom_when_and_for_what(ledger, capsys):
    assert main([ledger.path]) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == str(ledger) == str(LedgerFile(ledger.path))
    text = " ".join(printed.split())
    for words in (
        "mean age: 1 x",
        "again: 2 x",
        "count, by OpenDP",
        "by 3 budget(s)",
        ledger.budget_claims()[0].created[:10],
    ):
        assert words in text
    if not ledger.account.is_gaussian:
        assert "spent: epsilon = 0.4, delta = 2e-07" in text
        assert "left: epsilon = 0.6, delta = 8e-07" in text
    else:
        assert "squares of mu add up" in text and "left: mu = " in text


def test_json(ledger, capsys):
    assert main([ledger.path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["account"]["composition"] == ledger.account.composition
    assert [len(b["claims"]) for b in found["budgets"]] == [1, 2, 0]
    assert (
        found["budgets"][2]["what"] == "count, by OpenDP" and found["budgets"][0]["epsilon"] == 0.25
    )
    assert found["spent"] == ledger.account.spent(ledger.budget_claims())
    if not ledger.account.is_gaussian:
        assert found["left"] == {"epsilon": 0.6, "delta": 8e-07}


def test_without_protection(tmp_path, capsys):
    ledger = Ledger(tmp_path / "a.ledger", epsilon=math.inf, delta=1e-6)
    PrivacyBudget(math.inf, 1e-6, chains=1, ledger=ledger).spend("x", [(Gaussian(1.0), 1)])
    assert main([ledger.path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spent"]["epsilon"] == "inf"


@pytest.mark.parametrize("argument", ["--help", "-h", "--version"])
def test_help_and_version(argument, capsys):
    assert main([argument]) == 0
    text = " ".join(capsys.readouterr().out.split())
    if argument == "--version":
        assert text.startswith("pymc-dp ")
        return
    assert (
        "usage: pymc-dp-ledger" in text and "by whom, when and for what, and what is left" in text
    )
    assert "pymc_dp.Ledger('hospital.ledger', epsilon=4.0, delta=1e-6)" in text


def test_messages_that_fit(tmp_path, capsys):
    """Exit code 2, and nothing is made or changed."""
    for wrong in ([], ["--list"], ["a.ledger", "b.ledger"]):
        assert main(wrong) == 2
        assert "usage: pymc-dp-ledger" in capsys.readouterr().err
    path = tmp_path / "a.ledger"
    for make, words in (
        (lambda: None, "There is no file"),
        (lambda: path.write_text("hello " * 500), "file is not a database"),
        (lambda: path.write_bytes(b""), "holds no account"),
    ):
        make()
        assert main([str(path)]) == 2
        assert words in capsys.readouterr().err
    assert main([str(tmp_path)]) == 2
    assert "is a folder: give the path of a ledger" in capsys.readouterr().err


def test_a_ledger_of_an_older_version_is_refused(tmp_path, capsys):
    """Nothing is published yet: there is no reader."""
    path = tmp_path / "a.ledger"
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "CREATE TABLE account (epsilon REAL, delta REAL, adjacency TEXT, renyi_order REAL)"
        )
        db.commit()
    for opened in (
        lambda: Ledger(path),
        lambda: PrivacyBudget(1.0, 1e-6, chains=1, ledger=path),
        lambda: LedgerFile(str(path)),
    ):
        with pytest.raises(
            LedgerError, match=r"another version of pymc_dp \(format 0.*Open a new account"
        ):
            opened()
    assert main([str(path)]) == 2 and "another version" in capsys.readouterr().err


def test_in_under_a_second_without_pymc_and_scipy(ledger):
    """A cold start of the command, in a process of its own."""
    code = (
        "import sys, time; begin = time.process_time()\n"
        "from pymc_dp.ledger_file import main\n"
        f"assert main([{ledger.path!r}, '--json']) == 0\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'pymc', 'pytensor', 'arviz', 'scipy'}), file=sys.stderr)\n"
        "print(time.process_time() - begin < 1, file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr.split("\n")[:2] == ["[]", "True"]
    assert json.loads(found.stdout)["path"] == ledger.path
