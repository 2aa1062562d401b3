"""Releases that are all planned before the first: one claim of the whole plan, of which each release takes a part."""

import math
import pickle

import pytest

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.claims import StepAccess
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.privacy.mechanisms.subsampled import SampledGaussian

DELTA = 1e-6
#: A start, and the release: within (1, 1e-6) by the best accountant, but not one after the other.
START, RELEASE = ((Gaussian(30.0), 3),), ((L2Laplace(0.82, 4), 1),)
TIGHT = (*START, *RELEASE)
#: The same with less of everything, which fits both ways.
LOOSE = ((Gaussian(60.0), 3), (L2Laplace(0.3, 4), 1))


def budget_of(epsilon=1.0, **kwargs):
    return PrivacyBudget(epsilon, DELTA, chains=1, **kwargs)


@pytest.mark.parametrize("plan, fits", [(TIGHT, False), (LOOSE, True)])
class TestAPlan:
    def test_the_whole_plan_counts_from_the_first_part(self, plan, fits):
        budget = budget_of()
        assert budget.terms.adaptive.fits(Cost.of(plan)) == fits
        expected, proved_by = Cost.of(plan).best(DELTA)
        assert expected <= 1
        budget.spend("start", plan[:1], plan=iter(plan))
        for label, not_made in (("release", plan[1:]), (None, ())):
            report = budget.report()
            assert budget.spent() == report.epsilon == expected
            assert budget.remaining() == pytest.approx(1 - expected)
            assert report.proved_by == proved_by and report.protected
            assert report.attack_power["1%"] == Cost.of(plan).max_true_positive_rate(0.01)
            assert report.gaussian_mu == pytest.approx(math.sqrt(Cost.of(plan).mu_squared))
            names = tuple(f"{k} x {m.name}" for m, k in not_made)
            assert report.one_off_accesses.pop("planned, not made", ()) == names
            assert report.one_off_accesses["start"] == (f"3 x {plan[0][0].name}",)
            for text in (str(report), report.to_markdown(), report.to_json()):
                assert "start" in text and plan[0][0].name in text
            if label is not None:
                budget.spend(label, plan[1:])
        assert list(report.one_off_accesses) == ["start", "release"]
        assert [c.step for c in budget.ledger.claims()] == ["start", "release"]

    def test_nothing_else_is_ever_claimed(self, plan, fits):
        budget = budget_of()
        budget.spend("start", plan[:1], plan=plan)
        for other in (
            ((Gaussian(1e9), 1),),  # costs nothing, but was not planned
            (plan[0],),  # already made
            ((plan[1][0], 2),),
        ):
            with pytest.raises(PrivacyBudgetExhausted, match="not part of it"):
                budget.spend("other", other)
        with pytest.raises(PrivacyBudgetExhausted, match="cannot be given or changed"):
            budget.spend("release", plan[1:], plan=(*plan, (Gaussian(1e9), 1)))
        budget.spend("release", plan[1:])
        with pytest.raises(PrivacyBudgetExhausted, match="not part of it"):
            budget.spend("again", plan[1:])
        assert len(budget.ledger.claims()) == 2

    def test_no_chain_runs(self, plan, fits):
        """By the budget, and by the ledger for who does not know of the plan."""
        budget = budget_of()
        step = StepAccess("G[x]", ("x",), ((Gaussian(1e3), 1),), 1, ("x",), 1000, True)
        budget.register(step)
        ignorant = pickle.loads(pickle.dumps(budget))
        budget.spend("start", plan[:1], plan=plan)
        assert budget.left() == 0
        for ask in (budget.plan, lambda: budget.claim("G[x]"), budget.expected_draws):
            with pytest.raises(PrivacyBudgetExhausted, match=r"planned with the first .*\(start\)"):
                ask()
        with pytest.raises(PrivacyBudgetExhausted, match="not part of it"):
            ignorant.claim("G[x]")
        both_labels = [c.step for c in budget.ledger.claims()]
        assert both_labels == ["start"]
        copy = pickle.loads(pickle.dumps(budget))
        copy.spend("release", plan[1:])
        assert copy.report().one_off_accesses.keys() == {"start", "release"}


@pytest.mark.parametrize("epsilon", [0.9, 0.02])
def test_a_plan_that_does_not_fit_is_refused_before_its_first_part(epsilon):
    budget = budget_of(epsilon)
    with pytest.raises(PrivacyBudgetExhausted, match=r"all that is planned \(epsilon = 0\.9") as e:
        budget.spend("start", START, plan=TIGHT)
    assert "Nothing was accessed" in str(e.value)
    assert budget.spent() == 0 == len(budget.ledger.claims()) and budget.planned == ()
    budget.spend("start", ((Gaussian(1e3), 1),), plan=((Gaussian(1e3), 2),))


def test_what_is_not_a_plan():
    budget = budget_of()
    with pytest.raises(ValueError, match="not part of its own plan"):
        budget.spend("start", START, plan=RELEASE)
    with pytest.raises(ValueError, match="whole number"):
        budget.spend("start", START, plan=(*START, (Gaussian(9.0), 0.5)))
    batch = SampledGaussian(1.0, 0.1, "poisson", "add_remove")
    with pytest.raises(ValueError, match="'substitute'"):
        budget.spend("start", START, plan=(*START, (batch, 1)))
    assert budget.ledger.claims() == []
    budget.spend("start", START)
    with pytest.raises(PrivacyBudgetExhausted, match="fixed by the first claim"):
        budget.spend("release", RELEASE, plan=TIGHT)
    with pytest.raises(PrivacyBudgetExhausted, match="fixed by the first claim"):
        budget.spend("release", RELEASE, plan=RELEASE)
