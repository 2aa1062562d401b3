"""Releases by other tools on an account: they are claims like any other."""

import math

import pytest

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy import Gaussian, PureDP, ZeroConcentratedDP
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.ledger import Ledger, main
from tests.privacy.budget.test_budget import fixed

DELTA = 1e-6


def account(tmp_path, epsilon=2.0, delta=DELTA, **kwargs):
    return Ledger(tmp_path / "a.ledger", epsilon=epsilon, delta=delta, **kwargs)


def test_all_kinds_add_up_with_a_run(tmp_path, capsys):
    ledger = account(tmp_path)
    ledger.record(rho=0.01, note="age histogram,\nOpenDP")
    ledger.record(epsilon=0.1, note="count")
    ledger.record(mu=0.1, note="mean")
    budget = PrivacyBudget(0.5, DELTA, chains=1, ledger=ledger)
    budget.register(fixed())
    budget.claim(fixed().label)
    recorded = [(ZeroConcentratedDP(0.01), 1), (PureDP(0.1), 1), (Gaussian(10.0), 1)]
    (own,) = (claim.accesses for claim in ledger.claims(budget.id))
    assert ledger.spent() == ledger.account.adaptive.holds(Cost.of([*recorded, *own]))
    assert main([ledger.path]) == 0
    for words in (str(ledger), capsys.readouterr().out):
        assert "age histogram, OpenDP: 1 x zCDP(rho=0.01)" in words
        assert "count: 1 x pure DP(epsilon=0.1)" in words and "by 4 claim(s)" in words
    assert budget.report().account_epsilon == ledger.spent()


def test_what_the_account_does_not_pay_for(tmp_path):
    ledger = account(tmp_path, epsilon=1.0)
    ledger.record(rho=0.005, note="first")
    before = ledger.spent()
    with pytest.raises(PrivacyBudgetExhausted, match="asked for by the release 'second'"):
        ledger.record(rho=0.1, note="second")
    assert ledger.spent() == before and len(ledger.claims()) == 1


def test_a_run_is_refused_that_the_rest_does_not_pay_for(tmp_path):
    """A planted fault, an account that forgets what was recorded, would grant it."""
    ledger = account(tmp_path, epsilon=1.0)
    budget = PrivacyBudget(1.0, DELTA, chains=1, ledger=ledger)
    budget.register(fixed())
    ledger.record(rho=0.005, note="histogram")
    with pytest.raises(PrivacyBudgetExhausted, match="The account allows"):
        budget.claim(fixed().label)
    other = PrivacyBudget(1.0, DELTA, chains=1)
    other.register(fixed())
    other.claim(fixed().label)


def test_a_first_release_may_take_the_whole_account(tmp_path):
    """As a plan of one release, by pure epsilon; nothing else fits then."""
    ledger = account(tmp_path, epsilon=1.0)
    ledger.record(epsilon=1.0, note="whole")
    assert 1 - 1e-5 < ledger.spent() <= 1
    with pytest.raises(PrivacyBudgetExhausted):
        ledger.record(mu=1e-4, note="more")


def test_pure_accounts(tmp_path):
    ledger = account(tmp_path, epsilon=1.0, delta=0.0)
    ledger.record(epsilon=0.25, note="a")
    ledger.record(epsilon=0.75, note="b")
    assert ledger.spent() == 1.0
    with pytest.raises(PrivacyBudgetExhausted):
        ledger.record(epsilon=1e-6, note="c")
    for kind in ({"rho": 0.01}, {"mu": 0.1}):
        with pytest.raises(ValueError, match="no finite epsilon at delta = 0"):
            ledger.record(**kind, note="d")
    assert len(ledger.claims()) == 2


def test_gaussian_accounts(tmp_path):
    ledger = account(tmp_path, accountant="gaussian")
    with pytest.raises(
        ValueError, match=r"composes in Gaussian DP, and zCDP\(rho=0.01\) has no mu"
    ):
        ledger.record(rho=0.01, note="a")
    ledger.record(mu=0.1, note="b")
    ledger.record(epsilon=0.1, note="c")
    expected = 0.01 + PureDP(0.1).gaussian_mu ** 2
    assert ledger.account.adaptive.price_of(ledger.claimed().total) == pytest.approx(expected)


def test_bad_entries(tmp_path):
    ledger = account(tmp_path)
    for bad in ({"note": " "}, {"note": None}):
        with pytest.raises(ValueError, match="note is empty"):
            ledger.record(epsilon=0.1, **bad)
    with pytest.raises(ValueError, match="cannot be recorded: claims compose at the account's own"):
        ledger.record(epsilon=0.1, delta=1e-9, note="x")
    assert ledger.claims() == []


def test_an_account_without_protection(tmp_path):
    ledger = account(tmp_path, epsilon=math.inf)
    ledger.record(rho=100.0, note="all")
    assert ledger.spent() == math.inf
