"""Gaussian or l2 noise: which has the smaller standard deviation, and that plans with it stay within the budget."""

import math

import numpy as np
import pytest

from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy import Gaussian, L2Laplace, epsilon_of, least_noise
from pymc_dp.privacy.accounting import pld
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.budget import PrivacyBudget
from tests.privacy.mechanisms.test_l2_laplace import expected

START = ((Gaussian(30.0), 3),)


def delta_by_integration(release, multiplier, epsilon):
    """Of l2 noise after a Gaussian release: over the noise itself, and over the privacy loss of the other."""
    normal = np.linspace(-6, 6, 61)
    weights = np.exp(-(normal**2) / 2)
    left = epsilon - (normal / multiplier + 1 / (2 * multiplier**2))

    def excess(t):
        if abs(t) >= release.epsilon:  # no larger loss is possible
            return max(0.0, -math.expm1(t))
        return expected(
            lambda loss: np.maximum(-np.expm1(t - loss), 0), release.epsilon, release.n_dim, (t,)
        )

    return float(weights @ [excess(t) for t in left]) / weights.sum()


class TestWithinTheBudget:
    @pytest.mark.parametrize("n_dim, delta", [(2, 1e-6), (4, 1e-3), (17, 1e-6)])
    def test_one_release_is_exact(self, n_dim, delta):
        """Delta at the epsilon that was asked for, by integration over the noise."""
        release = least_noise(n_dim, 1.0, delta)
        assert isinstance(release, L2Laplace) and release.epsilon > 1
        reached = expected(
            lambda loss: np.maximum(-np.expm1(1 - loss), 0), release.epsilon, n_dim, (1.0,)
        )
        assert reached <= delta * (1 + 1e-6)
        if pld.AVAILABLE:
            assert reached > 0.8 * delta

    @pytest.mark.parametrize("delta", [1e-6, 1e-3])
    def test_after_another_release(self, delta):
        release = least_noise(4, 1.0, delta, before=((Gaussian(12.0), 1),))
        assert isinstance(release, L2Laplace)
        reached = delta_by_integration(release, 12.0, 1.0)
        assert reached <= delta * (1 + 1e-6)
        if pld.AVAILABLE:
            assert reached > 0.8 * delta

    @pytest.mark.parametrize("noise, before, count", [("auto", (), 1), ("l2", START, 1), ("gaussian", START, 3), ("auto", ((L2Laplace(0.2, 3), 1),), 1)])  # fmt: skip
    def test_a_budget_pays_for_the_plan_and_for_hardly_more(self, noise, before, count):
        release = least_noise(5, 1.0, 1e-6, before=iter(before), count=count, noise=noise)
        plan = (*before, (release, count))
        assert 1 - 1e-4 < epsilon_of(plan, 1e-6) <= 1
        budget = PrivacyBudget(1.0, 1e-6, chains=1)
        budget.spend("first", plan[:1], plan=plan)
        assert budget.spent() <= 1
        less = Gaussian if isinstance(release, Gaussian) else (lambda x: L2Laplace(x, 5))
        change = 0.999 if isinstance(release, Gaussian) else 1.001
        setting = release.noise_multiplier if isinstance(release, Gaussian) else release.epsilon
        plan = (*before, (less(setting * change), count))
        with pytest.raises(PrivacyBudgetExhausted):
            PrivacyBudget(1.0, 1e-6, chains=1).spend("first", plan[:1], plan=plan)

    @pytest.mark.parametrize("parts", [(), (0.1,), (0.1, 0.2, 1 / 3)])
    @pytest.mark.parametrize("count", [1, 3, 7])
    def test_pure(self, parts, count):
        """All of epsilon, to the last digit."""
        before = [(L2Laplace(part, 4), 1) for part in parts]
        for noise in ("auto", "l2"):
            release = least_noise(4, 1.0, 0, before=before, count=count, noise=noise)
            spent = epsilon_of([*before, (release, count)], 0)
            assert 1 - 1e-15 < spent <= 1
        if not parts and count == 1:
            assert release == L2Laplace(1.0, 4)

    def test_the_accountant_of_the_budget(self):
        release = least_noise(2, 1.0, 1e-6, noise="l2", accountant="gaussian")
        assert Cost.of([(release, 1)]).epsilon(1e-6, "gaussian") <= 1 < 1.5 < release.noise_sd
        assert isinstance(least_noise(2, 1.0, 1e-6, accountant="gaussian"), Gaussian)


class TestLeast:
    def test_standard_deviations(self):
        assert Gaussian(3.0).noise_sd == 3
        mechanism = L2Laplace(0.5, 8)
        # The length is Gamma(8) in units of the scale, here 2: its mean square is 8 * 9.
        assert mechanism.noise_sd == pytest.approx(math.sqrt(8 * 9 / 8) * 2)

    @pytest.mark.parametrize("n_dim, before", [(1, ()), (3, START), (30, ()), (30, START)])
    def test_the_smaller_of_the_two(self, n_dim, before):
        kinds = [least_noise(n_dim, 1.0, 1e-6, before=before, noise=k) for k in ("gaussian", "l2")]
        found = least_noise(n_dim, 1.0, 1e-6, before=before)
        assert found.noise_sd == pytest.approx(min(k.noise_sd for k in kinds), rel=1e-5)
        assert type(found) is type(min(kinds, key=lambda kind: kind.noise_sd))

    def test_where_l2_noise_ends(self, monkeypatch):
        """With its pure epsilon only, at 16 dimensions; by Rényi divergences, which use delta, at 69."""
        monkeypatch.setattr(pld, "AVAILABLE", False)
        gaussian = least_noise(1, 1.0, 1e-6, noise="gaussian").noise_sd
        assert L2Laplace(1.0, 16).noise_sd < gaussian < L2Laplace(1.0, 17).noise_sd
        kinds = [type(least_noise(d, 1.0, 1e-6)) for d in (1, 16, 17, 69, 70, 200)]
        assert kinds == 4 * [L2Laplace] + 2 * [Gaussian]
        assert isinstance(least_noise(3000, 0.1, 1e-3), Gaussian)

    def test_by_the_loss_itself_it_never_ends(self):
        """Its loss is bounded: for one release it is better in any dimension, by less and less."""
        pytest.importorskip("dp_accounting", reason="the extra 'pld' is not installed")
        gaussian = least_noise(1, 1.0, 1e-6, noise="gaussian").noise_sd
        ratios = [least_noise(d, 1.0, 1e-6).noise_sd / gaussian for d in (10, 80, 300)]
        assert ratios == pytest.approx([0.719, 0.955, 0.988], abs=0.003)

    def test_without_protection(self):
        assert least_noise(3, math.inf, 1e-6).noise_sd <= 2 / 500
        assert least_noise(3, math.inf, 0) == L2Laplace(500.0, 3)
        assert isinstance(least_noise(30, 1e4, 1e-6), Gaussian)


class TestRefusals:
    def test_no_room(self):
        for before, delta in ((((Gaussian(4.0), 1),), 1e-6), (((L2Laplace(1.0, 2), 1),), 0)):
            with pytest.raises(ValueError, match="none left for a release"):
                least_noise(4, 1.0, delta, before=before)

    def test_delta_zero(self):
        with pytest.raises(ValueError, match=r"Gaussian.*Choose delta > 0"):
            least_noise(4, 1.0, 0, before=START)
        with pytest.raises(ValueError, match=r"Gaussian.*Choose delta > 0"):
            least_noise(4, 1.0, 0, noise="gaussian")

    @pytest.mark.parametrize("change, words", [({"n_dim": 0}, "n_dim"), ({"count": 0}, "count"), ({"noise": "laplace"}, "'l2'"), ({"epsilon": 0}, "epsilon"), ({"delta": 1}, "delta")])  # fmt: skip
    def test_arguments(self, change, words):
        with pytest.raises(ValueError, match=words):
            least_noise(**{"n_dim": 4, "epsilon": 1.0, "delta": 1e-6} | change)
