"""Releases by other tools on an account: they are claims like those of budgets."""

import math

import pytest

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.ledger_file import main
from pymc_dp.privacy import Gaussian, PureDP, ZeroConcentratedDP, epsilon_of
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.ledger import Ledger
from tests.privacy.budget.test_budget import fixed

DELTA = 1e-6


def account(tmp_path, epsilon=2.0, delta=DELTA, **kwargs):
    return Ledger(tmp_path / "a.ledger", epsilon=epsilon, delta=delta, **kwargs)


def test_all_kinds_add_up_with_a_run(tmp_path, capsys):
    ledger = account(tmp_path)
    ledger.record(rho=0.01, delta=2e-7, note="age histogram,\nOpenDP")
    ledger.record(epsilon=0.1, delta=1e-7, note="count")
    ledger.record(mu=0.1, delta=2e-7, note="mean")
    budget = PrivacyBudget(0.5, 5e-7, chains=1, ledger=ledger)
    budget.register(fixed())
    budget.claim(fixed().label)
    others = [epsilon_of([(m, 1)], 2e-7) for m in (ZeroConcentratedDP(0.01), Gaussian(10.0))]
    assert ledger.spent() == pytest.approx(0.1 + 0.5 + sum(others), rel=1e-12)
    assert ledger.account.left(ledger.budget_claims())["delta"] == 0
    assert main([ledger.path]) == 0
    for words in (str(ledger), capsys.readouterr().out):
        assert "age histogram, OpenDP" in words and "by 4 budget(s)" in words
    assert budget.report().account_epsilon == ledger.spent()
    assert "all budgets on this ledger together" in str(budget.report())
    with pytest.raises(PrivacyBudgetExhausted, match="Asked for by the release 'more'"):
        ledger.record(rho=0.01, delta=1e-7, note="more")
    PrivacyBudget(0.01, 0, chains=1, ledger=ledger).spend("pure", ((PureDP(0.01), 1),))
    assert ledger.n_budgets == 5  # pure epsilons take no delta, of which nothing is left


def test_a_run_is_refused_that_the_rest_does_not_pay_for(tmp_path):
    """A planted fault, an account that forgets what was recorded, would grant it."""
    ledger = account(tmp_path, epsilon=1.0)
    budget = PrivacyBudget(1.0, DELTA, chains=1, ledger=ledger)
    budget.register(fixed())
    ledger.record(epsilon=0.005, note="histogram")
    with pytest.raises(PrivacyBudgetExhausted, match=r"The account in .* allows"):
        budget.claim(fixed().label)
    assert not ledger.claims() and ledger.spent() == 0.005


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
    assert ledger.n_budgets == 2


def test_gaussian_accounts(tmp_path):
    ledger = account(tmp_path, composition="gaussian")
    with pytest.raises(ValueError, match=r"adds up squares of mu, and zCDP\(rho=0.01\) has no mu"):
        ledger.record(rho=0.01, note="a")
    with pytest.raises(ValueError, match="none follows from delta = 1e-07"):
        ledger.record(epsilon=0.1, delta=1e-7, note="a")
    ledger.record(mu=0.1, note="b")
    ledger.record(epsilon=0.1, note="c")
    squares = 0.01 + PureDP(0.1).gaussian_mu ** 2
    assert ledger.account.spent(ledger.budget_claims())["mu"] == pytest.approx(math.sqrt(squares))
    together = Gaussian(1 / math.sqrt(squares))
    assert ledger.spent() == pytest.approx(epsilon_of([(together, 1)], DELTA, "gaussian"))
