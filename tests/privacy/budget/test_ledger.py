"""The ledger: atomic claims from any process, that survive whatever kills them."""

import math
import multiprocessing
import os
import pickle
import sqlite3

from contextlib import closing
from fractions import Fraction

import pytest

from hypothesis import given
from hypothesis import strategies as st

from pymc_dp.acceptance import Penalty
from pymc_dp.errors import LedgerError, PrivacyBudgetExhausted
from pymc_dp.ledger_file import Account, BudgetClaim
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.calibration import epsilon_of
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.claims import BudgetTerms
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.mechanisms.mechanism import Decision, Gaussian
from pymc_dp.privacy.mechanisms.stated import PureDP

TERMS = {"epsilon": 1.0, "delta": 1e-6}


def claim(ledger, accesses, **kwargs):
    return ledger.claim(BudgetTerms("b", **TERMS), "s", accesses, **kwargs)


def fits(accesses):
    """Whether claims one after the other stay within the budget."""
    return AdaptiveComposition.opened(**TERMS).fits(Cost.of(accesses))


def opened(ledger, budget, epsilon, delta, noise=1e9):
    """Claim something that costs next to nothing on a budget, whose terms are what counts."""
    return ledger.claim(BudgetTerms(budget, epsilon, delta), "s", [(Gaussian(noise), 1.0)])


class TestAccountsAddUp:
    """Budgets claim all of themselves at their first access."""

    @pytest.mark.parametrize("n", [3, 7, 10, 30])
    def test_parts_fit_to_the_last_and_no_further(self, tmp_path, n):
        """Ten budgets of (0.1, 1e-7) on (1, 1e-6): floats would be 0.9999999999999999 and 9.999999999999999e-07, or above."""
        ledger = Ledger(tmp_path / "a.ledger", epsilon=n / 10, delta=float(f"{n}e-7"))
        for k in range(n):
            opened(ledger, f"b{k}", 0.1, 1e-7)
            opened(ledger, f"b{k}", 0.1, 1e-7)  # again: nothing more
            assert ledger.spent() == (k + 1) / 10
        assert ledger.n_budgets == n
        assert ledger.account.left(ledger.budget_claims()) == {"epsilon": 0, "delta": 0}
        for more in ((1e-300, 0.0), (0.1, 1e-7)):
            with pytest.raises(PrivacyBudgetExhausted, match=r"left: epsilon = 0, delta = 0"):
                ledger.check(BudgetTerms("more", *more), "more")

    def test_other_terms_under_the_same_name(self, tmp_path):
        ledger = Ledger(tmp_path / "a.ledger", **TERMS)
        opened(ledger, "b", 0.1, 1e-7)
        with pytest.raises(PrivacyBudgetExhausted, match="another epsilon"):
            opened(ledger, "b", 0.5, 1e-7)

    @given(
        parts=st.lists(st.tuples(st.floats(1e-6, 1), st.floats(0, 1e-6)), max_size=12),
        composition=st.sampled_from(["basic", "gaussian"]),
    )
    def test_never_above(self, parts, composition):
        """Any sequence of claims: sums of what was admitted are at most the total, in exact arithmetic."""
        mu = 0.2 if composition == "gaussian" else None
        account, admitted = Account(1.0, 1e-6, "substitute", composition, mu), []
        for epsilon, delta in parts:
            new = BudgetClaim("b", epsilon, delta, mu and epsilon * mu, "", "", "")
            if account.admits(admitted, new):
                admitted.append(new)
        if mu is None:
            assert sum(Fraction(repr(c.epsilon)) for c in admitted) <= 1
            assert sum(Fraction(repr(c.delta)) for c in admitted) <= Fraction("1e-6")
        else:
            assert len(admitted) < 2 or sum(Fraction(c.mu) ** 2 for c in admitted) < Fraction(
                mu
            ) ** 2 * (1 - Fraction("5e-9"))
        assert not parts or admitted


class TestGaussianAccounts:
    def test_many_small_analyses(self, tmp_path):
        """95 analyses of (0.1, 1e-7) on an account of (1, 1e-6), of which basic composition pays for ten; all of them are mu-GDP."""
        ledger = Ledger(tmp_path / "a.ledger", **TERMS, composition="gaussian")
        part = {"epsilon": 0.1, "delta": 1e-7}
        mu = math.sqrt(AdaptiveComposition.opened(**part, accountant="gaussian").limit)
        n = 0
        with pytest.raises(PrivacyBudgetExhausted, match="left: mu = "):
            while True:
                opened(ledger, f"b{n}", **part)
                n += 1
        assert epsilon_of([(Gaussian(1 / mu), n)], 1e-6, "gaussian") <= 1
        assert epsilon_of([(Gaussian(1 / mu), n + 1)], 1e-6, "gaussian") > 1
        assert n == 95 and 0.99 < ledger.spent() <= 1

    def test_one_budget_may_take_all_and_nothing_follows(self, tmp_path):
        ledger = Ledger(tmp_path / "a.ledger", **TERMS, composition="gaussian")
        opened(ledger, "all", 1.0, 1e-6)
        with pytest.raises(PrivacyBudgetExhausted):
            opened(ledger, "more", 1e-6, 0.0)

    def test_everything_inside_composes_in_gaussian_dp(self, tmp_path):
        """Of another accountant (epsilon, delta) has no mu: refused when the budget is made."""
        ledger = Ledger(tmp_path / "a.ledger", **TERMS, composition="gaussian")
        for accountant in ("best", "rdp"):
            with pytest.raises(LedgerError, match="make the budget with accountant='gaussian'"):
                PrivacyBudget(0.1, 1e-7, chains=1, ledger=ledger, accountant=accountant)
        PrivacyBudget(0.1, 1e-7, chains=1, ledger=ledger, accountant="gaussian")
        budget = PrivacyBudget(0.1, 0, chains=1, ledger=ledger)  # pure epsilons have a mu
        budget.spend("sum", ((PureDP(0.1), 1),))
        assert ledger.account.spent(ledger.budget_claims())["mu"] == PureDP(0.1).gaussian_mu


def test_claims_add_up_to_the_budget_and_no_further(tmp_path):
    ledger = Ledger(tmp_path / "a.ledger", **TERMS)
    access = (Decision(Penalty(1.4), 0.05), 10.0)
    granted = 0
    with pytest.raises(PrivacyBudgetExhausted, match=r"The budget allows .* Largest feasible"):
        while True:
            claim(ledger, [access])
            granted += 1
    assert fits([access] * granted) and not fits([access] * (granted + 1))
    assert len(ledger.claims("b")) == granted and ledger.spent() == 1


def test_the_message_has_the_feasible_values(tmp_path):
    ledger = Ledger(tmp_path / "a.ledger", **TERMS)
    decision = Decision(Penalty(1.4), 0.05)
    claim(ledger, [(decision, 20.0)])
    with pytest.raises(PrivacyBudgetExhausted) as caught:
        claim(ledger, [(decision, 500.0)], draws=500)
    feasible = int(str(caught.value).split("Largest feasible: ")[1].split()[0])
    assert fits([(decision, 20 + feasible)])
    assert not fits([(decision, 22 + feasible)])
    for word in ("Spent", "left", "asked", "Nothing was accessed"):
        assert word in str(caught.value)
    assert len(ledger.claims()) == 1


def raced(target, path, method="fork"):
    """What three processes that begin together are granted, in all."""
    context = multiprocessing.get_context(method)
    start, results = context.Barrier(3), context.Queue()
    workers = [context.Process(target=target, args=(path, start, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    granted = sum(results.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    return granted


def _open_many(path, start, results):
    ledger, granted = Ledger(path), 0
    start.wait()
    for k in range(20):
        try:
            opened(ledger, f"{os.getpid()} {k}", 0.1, 1e-7)
            granted += 1
        except PrivacyBudgetExhausted:
            pass
    results.put(granted)


@pytest.mark.parametrize("composition, most", [("basic", 10), ("gaussian", 60)])
def test_racing_processes_never_exceed_the_account(tmp_path, composition, most):
    path = tmp_path / "a.ledger"
    ledger = Ledger(path, **TERMS, composition=composition)
    assert raced(_open_many, path) == most == ledger.n_budgets and ledger.spent() <= 1


def _open(path, start, results):
    start.wait()
    claim(Ledger(path, **TERMS), [(Gaussian(30.0), 1.0)])
    results.put(True)


def test_racing_processes_open_one_account(tmp_path):
    """Who comes second finds the account of who came first, whole; no file is left over."""
    for turn in range(5):
        path = tmp_path / f"{turn}.ledger"
        assert raced(_open, path) == len(Ledger(path).claims()) == 3
    assert len(list(tmp_path.iterdir())) == 5


def test_a_new_file_is_like_others(tmp_path):
    """Readable for whom the user's files are, under a name with any characters, where a link points; it keeps what was claimed."""
    (tmp_path / "a link").symlink_to(tmp_path / "100 %? #1.ledger")
    claim(Ledger(tmp_path / "a link", **TERMS), [(Gaussian(30.0), 1.0)])
    again = pickle.loads(pickle.dumps(Ledger(tmp_path / "100 %? #1.ledger")))
    assert again.account.epsilon == 1.0
    assert [c.accesses for c in again.claims()] == [((Gaussian(30.0), 1.0),)]
    (tmp_path / "other").touch()
    assert (tmp_path / "a link").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 3


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
        assert len(ledger.claims()) == 1 and "1 budget" in str(ledger)
        with pytest.raises(LedgerError, match="locked"):
            claim(ledger, [(Gaussian(10.0), 1.0)])
    assert len(ledger.claims()) == 1


def test_claims_without_protection(tmp_path):
    """They cost nothing, whatever they are, and every chain writes one."""
    terms = {"epsilon": math.inf, "delta": 1e-6}
    ledger = Ledger(tmp_path / "a.ledger", **terms)
    for _ in range(3):
        ledger.claim(BudgetTerms("b", **terms), "s", (), plan=())
    ledger.record(rho=1.0, delta=1e-7, note="by another tool")
    assert len(ledger.claims("b")) == 3 and ledger.spent() == math.inf
    assert ledger.account.left(ledger.budget_claims())["epsilon"] == math.inf
