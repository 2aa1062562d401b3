"""Signs of life: what is shown where, how often, and that ``progressbar=False`` is silent."""

import io
import itertools
import logging
import re
import threading
import time

import numpy as np
import pymc as pm
import pytest

from rich.console import Console

import pymc_dp as dp

from pymc_dp import progress
from pymc_dp.progress import counted, note, shown, silenced

pytestmark = pytest.mark.filterwarnings("ignore::pymc_dp.errors.PrivacyLeakWarning")


@pytest.fixture(scope="module")
def simulator():
    with pm.Model():
        y = np.random.default_rng(1).normal(size=400)
        pm.Normal("y", pm.Normal("mu", 0, 3), 1, observed=y)
        return dp.Simulator()


@pytest.fixture
def lines(caplog, monkeypatch):
    """Texts of log lines, where output is no terminal."""
    monkeypatch.setattr(progress, "_is_seen", lambda console: False)
    caplog.set_level(logging.INFO, logger="pymc.dp")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def terminal(monkeypatch):
    """What is written to a terminal."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "Console", lambda: console)
    return file


def test_lines_are_logged_at_once_and_repeated(lines, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.05)
    with shown(True):
        note("first")
        assert lines() == ["first"]
        time.sleep(0.3)
        note("second")
    repeated = [line for line in lines() if re.fullmatch(r"first: \d s so far", line)]
    assert len(repeated) >= 2 and lines()[-1] == "second"


def test_no_thread_outlives_an_error(lines):
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="wrong"), shown(True):
        note("work")
        assert set(threading.enumerate()) > before
        raise ValueError("wrong")
    assert set(threading.enumerate()) == before
    note("after")
    assert lines() == ["work"]


def test_terminal_shows_each_part_with_a_clock(terminal):
    before = set(threading.enumerate())
    with shown(True):
        note("planning [50 %]")
        note("releasing")
    assert set(threading.enumerate()) == before
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).splitlines()[-2:]
    assert [line.split() for line in last] == [["planning", "[50", "%]", "0:00:00"], ["releasing", "0:00:00"]]  # fmt: skip


def test_outermost_call_decides(lines, terminal):
    with shown(False), shown(True):
        note("hidden")
    with shown(True), shown(False):
        note("seen")
    assert lines() == ["seen"] and not terminal.getvalue()


def test_draws_are_counted(lines, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", -1.0)
    called = []
    count = counted(True, 3, lambda trace, draw: called.append(draw))
    for k in range(3):
        count(None, k)
    assert called == [0, 1, 2]
    assert lines() == [f"sampling: {k} of 3 draws" for k in (1, 2, 3)]


def test_draws_are_not_counted_beside_a_bar(terminal):
    assert counted(True, 3, print) is print and counted(True, 3) is None


def test_draws_are_not_counted_in_silence(lines):
    assert counted(False, 3, print) is print


def test_silence_keeps_warnings_and_ends():
    logger, level = logging.getLogger("pymc"), logging.getLogger("pymc").level
    with silenced(True):
        assert not logger.isEnabledFor(logging.INFO) and logger.isEnabledFor(logging.WARNING)
    with silenced(False):
        assert logger.level == level
    assert logger.level == level


def test_plan_and_release_name_the_share_of_the_budget(simulator, lines, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 1e6)  # lines are not repeated, however long it takes
    budget = dp.PrivacyBudget(epsilon=1.0, delta=0.0, chains=1)
    plan = dp.plan(budget=budget, simulator=simulator, guess={"mu": 0.0}, random_seed=1)
    assert lines() == ["planning on simulated records"]
    plan.release()
    found = [re.fullmatch(r"spending (\d+)% of epsilon = 1 on (.+)", x) for x in lines()]
    shares = {x[2]: int(x[1]) for x in found if x}
    assert shares.keys() == budget.one_off_accesses.keys() and abs(sum(shares.values()) - 100) <= 2
    claimed = {name: 100 * sum(k * m.epsilon for m, k in a) for name, a in budget.one_off_accesses.items()}  # fmt: skip
    assert all(abs(shares[name] - part) <= 1 for name, part in claimed.items())


@pytest.mark.slow
def test_starts_checks_and_comparisons_say_what_they_spend(simulator, lines):
    quiet = {"progressbar": False, "random_seed": 1}
    terms = {"delta": 1e-6, "chains": 1, "ledger": dp.Ledger(epsilon=20.0, delta=1e-5)}
    budgets = [dp.PrivacyBudget(epsilon=2.0, **terms) for _ in range(8)]
    plans = [dp.plan(simulator=simulator, budget=budget, **quiet) for budget in budgets[:2]]
    short = {"draws": 50, "compute_convergence_checks": False, "progressbar": False}
    released = [dp.sample(plan=plan, **short) for plan in plans]
    names = [dict(zip("ab", each, strict=True)) for each in (released, [simulator] * 2)]
    calls = {
        "statistics": lambda **options: dp.private_ppc(released[0], simulator=simulator, statistics=["mean"], **options),
        "the comparison": lambda **options: dp.private_compare(*names, **options),
        "a private start": lambda **options: dp.scores.private_start(simulator, **options),
    }  # fmt: skip
    cases = itertools.product(calls.items(), (True, False))
    for budget, ((label, call), shows) in zip(budgets[2:], cases, strict=True):
        n_before = len(lines())
        call(budget=budget, **quiet | {"progressbar": shows})
        said = [line for line in lines()[n_before:] if line.endswith(f"epsilon = 2 on {label}")]
        assert len(said) == shows


@pytest.fixture
def logged(monkeypatch):
    """PyMC's log on stderr, as in programs that set up no logging."""
    logger, handler = logging.getLogger("pymc"), logging.StreamHandler(open(2, "w", closefd=False))
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()
    yield
    logger.manager._clear_cache()


SETTINGS = {"draws": 120, "random_seed": 1, "compute_convergence_checks": False}


@pytest.mark.slow
@pytest.mark.parametrize("silent", [{"progressbar": False}, {"quiet": True}], ids=str)
def test_sampling_in_silence(simulator, silent, capfd, logged):
    terms = {"simulator": simulator, "epsilon": 1.0, "delta": 1e-6, "guess": {"mu": 0.0}}
    dp.sample(**terms, **SETTINGS, chains=2, cores=2, **silent)
    dp.sample(plan=dp.plan(step=dp.DPPenalty, **terms, chains=1, progressbar=False), **SETTINGS, **silent)  # fmt: skip
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_sampling_says_what_it_does(simulator, capfd, logged, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.02)
    dp.sample(simulator=simulator, epsilon=1.0, delta=1e-6, **SETTINGS, chains=2, cores=2)
    said = capfd.readouterr().err
    for text in ("planning on", "% of epsilon = 1 on scores", "of 240 draws", "checking the fit"):
        assert text in said
