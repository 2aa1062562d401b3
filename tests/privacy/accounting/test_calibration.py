"""Composition: published figures, closed forms, a second accountant, and the safe side."""

import csv
import math

from pathlib import Path

import numpy as np
import pytest

from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from experiments.published_bounds import zcdp
from pymc_dp.acceptance import Barker, Lazy, Penalty
from pymc_dp.privacy.accounting.calibration import calibrate, delta_of, epsilon_of, max_draws
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.mechanisms.mechanism import ORDERS, Decision, Gaussian
from pymc_dp.privacy.mechanisms.subsampled import SampledDecision

RATIO = 0.1 * math.sqrt(1e5)  # sigma / Delta of the flat 2-d banana of Räisä (2021)
DELTA = 1e-6
EPSILONS = (1, 2, 4, 6)
REFERENCE = Path(__file__).resolve().parents[4] / "shared" / "reference"
# Experiments of Räisä (2021): number of records, and (tau, releases) of one iteration.
GAUSSIAN_RUNS = {
    ("easy-2d", "dpps"): (100_000, [(0.1, 1)]),
    ("easy-2d", "dppa"): (100_000, [(0.1, 1)]),
    ("easy-2d", "hmc"): (100_000, [(0.1, 1), (0.4, 11)]),
    ("tempered-2d", "dpps"): (100_000, [(0.2, 1)]),
    ("tempered-2d", "dppa"): (100_000, [(0.2, 1)]),
    ("tempered-2d", "hmc"): (100_000, [(0.2, 1), (0.6, 11)]),
    ("gauss-30d", "dpps"): (200_000, [(0.06, 1)]),
    ("gauss-30d", "dppa"): (200_000, [(0.2, 1)]),
    ("gauss-30d", "hmc"): (200_000, [(0.05, 1), (0.1, 6)]),
    ("hard-gauss-2d", "dpps"): (200_000, [(0.07, 1)]),
    ("hard-gauss-2d", "dppa"): (200_000, [(0.1, 1)]),
    ("hard-gauss-2d", "hmc"): (200_000, [(0.05, 1), (0.2, 9)]),
    ("circle", "dpps"): (100_000, [(4, 1)]),
    ("circle", "dppa"): (100_000, [(4, 1)]),
    ("circle", "hmc"): (100_000, [(0.6, 1), (1.9, 41)]),
}


class TestPublishedTable:
    """Largest numbers of iterations at epsilon 1, 2, 4, 6 and delta = 1e-6."""

    @pytest.mark.parametrize(
        "releases, accountant, counts",
        [
            ([(0.1, 1)], zcdp, (34, 135, 507, 1079)),
            ([(0.1, 1)], "gaussian", (56, 201, 702, 1431)),
            ([(0.1, 1), (0.4, 11)], zcdp, (20, 80, 300, 639)),
            ([(0.1, 1), (0.4, 11)], "gaussian", (33, 119, 416, 848)),
            ([(0.2, 1), (0.6, 11)], zcdp, (62, 243, 914, 1942)),
            ([(0.2, 1), (0.6, 11)], "gaussian", (100, 361, 1263, 2576)),
        ],
    )
    def test_releases(self, releases, accountant, counts):
        """Theorems 3.1 and 3.2, 4.2 and 4.3 (10 leapfrog steps, 11 gradients), flat and tempered banana, exactly."""
        iteration = [(Gaussian(tau * math.sqrt(1e5)), k) for tau, k in releases]
        allowed = (max_draws(iteration, e, DELTA, accountant=accountant) for e in EPSILONS)
        assert tuple(allowed) == counts

    def test_every_closed_form_count_of_the_thesis(self):
        """All experiments and algorithms with Gaussian releases, if the list of its code's counts is there."""
        path = REFERENCE / "thesis_iterations.csv"
        if not path.exists():
            pytest.skip("the reference figures are not beside this repository")
        checked = 0
        with path.open() as file:
            for row in csv.DictReader(file):
                key = (row["experiment"], row["algorithm"])
                if row["accounting"] not in ("zcdp", "adp") or key not in GAUSSIAN_RUNS:
                    continue
                n, noise = GAUSSIAN_RUNS[key]
                iteration = [(Gaussian(tau * math.sqrt(n)), k) for tau, k in noise]
                accountant = {"zcdp": zcdp, "adp": "gaussian"}[row["accounting"]]
                allowed = max_draws(
                    iteration, float(row["epsilon"]), 0.1 / n, accountant=accountant
                )
                assert allowed == int(row["iterations"]), row
                checked += 1
        assert checked == 132

    @pytest.mark.parametrize(
        "rule, scale, counts",
        [
            (Penalty(1.4), 1.4, {1: 98, 2: 363, 4: 1299, 6: 2679}),
            (Penalty(1.0), 1.0, {1: 111, 2: 419, 4: 1507, 6: 3114}),
            (Penalty(0.5), 0.5, {1: 164, 2: 632, 4: 2302, 6: 4778}),
            (Barker(), 1.4, {4: 1271}),
            (Lazy(Penalty(1.4), 0.5), 1.4, {4: 3689}),
            (Lazy(Barker(), 0.5), 1.4, {4: 3362}),
            (Lazy(Barker(), 0.25), 1.4, {4: 7397}),
        ],
    )
    def test_decisions(self, rule, scale, counts):
        """At most 1 % below the figures checked on coarse grids."""
        for epsilon, count in counts.items():
            found = max_draws([(Decision(rule, scale / RATIO), 1)], epsilon, DELTA)
            assert 0.99 * count <= found <= 1.02 * count


def test_the_default_noise_and_laziness_are_good_choices():
    """Accepted moves per unit of privacy, as DPPenalty's docstring has them."""

    def moves(rule, epsilon=4.0):
        iterations = max_draws([(Decision(rule, 1.4 / RATIO), 1)], epsilon, DELTA)
        return iterations * rule.probability(0.0)

    default = moves(Penalty(2.0))
    for scale, documented in ((1.0, 470), (1.4, 629), (2.0, 753), (3.0, 657)):
        assert moves(Penalty(scale)) == pytest.approx(documented, rel=0.01)
        assert moves(Penalty(scale)) <= default
    assert moves(Barker()) < default
    for epsilon in (1.0, 4.0):
        gain = moves(Lazy(Penalty(2.0), 0.5), epsilon) / moves(Penalty(2.0), epsilon)
        assert 1.25 < gain < 1.45


@given(mu=st.floats(0.01, 8), epsilon=st.floats(1e-3, 30))
def test_gaussian_delta_is_the_closed_form(mu, epsilon):
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    got = delta_of([(Gaussian(1 / mu), 1)], epsilon, "gaussian")
    assert got >= exact - 1e-13
    assert got == pytest.approx(exact, rel=1e-6, abs=1e-12)


def test_against_dp_accounting():
    """A second opinion on composition and conversion, with sensitivity-normalised multipliers (its RDP accountant's convention)."""
    dp_accounting = pytest.importorskip("dp_accounting", reason="the extra 'pld' is not installed")
    from dp_accounting import rdp

    for z, k in ((2.0, 1), (20.0, 100), (50.0, 4000)):
        accountant = rdp.RdpAccountant(orders=ORDERS.tolist())
        accountant.compose(dp_accounting.GaussianDpEvent(z), k)
        theirs = accountant.get_epsilon(1e-6)
        assert epsilon_of([(Gaussian(z), k)], 1e-6, "rdp") == pytest.approx(theirs, rel=1e-6)
    pld = dp_accounting.pld.privacy_loss_distribution
    theirs = (
        pld.from_gaussian_mechanism(20.0, value_discretization_interval=1e-4)
        .self_compose(100)
        .get_epsilon_for_delta(1e-6)
    )
    assert epsilon_of([(Gaussian(20.0), 100)], 1e-6) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(
    "mechanism",
    [
        Decision(Penalty(1.0), 0.8),
        Decision(Barker(), 0.8),
        Decision(Lazy(Penalty(2.0), 0.5), 1.5),
        SampledDecision(Barker(), 2.0, 0.2),
        SampledDecision(Lazy(Penalty(1.4), 0.5), 3.0, 0.2),
    ],
    ids=lambda m: m.name,
)
def test_adaptive_adversary_by_dynamic_programming(mechanism):
    """Brute force over adaptive choices of the log-ratios: the hockey-stick divergence of 6 decisions stays below the bound."""
    k, rule, width = 6, mechanism.rule, mechanism.sensitivity
    q = getattr(mechanism, "sampling_probability", 1.0)
    choices = []
    for x in np.linspace(-4, 7, 23):
        for shift in (-width, -width / 2, width / 2, width):
            for start in (x, x + shift, x + shift / 2):  # log-ratio without the record
                without = (1 - q) * rule.probability(start)
                one = without + q * rule.probability(x)
                choices.append((one, without + q * rule.probability(x + shift)))

    for epsilon in (0.3, 1.0, 2.0):
        # Value of the game with log likelihood ratio `loss` and j decisions to come: E_P[(1 - e^{epsilon - total loss})_+].
        grid = np.linspace(-12, 12, 1201)
        value = np.maximum(1 - np.exp(epsilon - grid), 0)
        for _ in range(k):
            options = np.zeros_like(grid)
            for p_under, p_over in choices:
                up = grid + math.log(p_over / p_under)
                down = grid + math.log1p(-p_over) - math.log1p(-p_under)
                option = p_over * np.interp(up, grid, value)
                option += (1 - p_over) * np.interp(down, grid, value)
                options = np.maximum(options, option)
            value = options
        # Interpolating a convex function errs upwards; the margin covers it.
        attack = float(np.interp(0.0, grid, value))
        bounds = [delta_of([(mechanism, k)], epsilon, by) for by in ("rdp", "best")]
        assert attack <= min(bounds) * 1.02
        if epsilon == 0.3:
            assert attack > 0.1 * min(bounds)


class TestAttackPower:
    """Bounds on the true positive rate of any test."""

    def test_gaussian_is_exact(self):
        for mu in (0.1, 1.0, 3.0):
            got = Cost.of([(Gaussian(1 / mu), 1)]).max_true_positive_rate(0.01)
            assert got <= norm.cdf(norm.ppf(0.01) + mu) * (1 + 1e-9)

    def test_a_real_attack_stays_below(self):
        """Ten Barker decisions, optimal test by enumeration."""
        k, sensitivity, rate = 10, 0.6, 0.01
        p, q = Barker().probability(sensitivity / 2), Barker().probability(-sensitivity / 2)
        pmf_p = np.array([math.comb(k, j) * p**j * (1 - p) ** (k - j) for j in range(k + 1)])
        pmf_q = np.array([math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)])
        false, power = 0.0, 0.0
        for j in range(k, -1, -1):  # Neyman-Pearson: most accepts first, randomised at the edge
            part = min(1.0, (rate - false) / pmf_q[j])
            false, power = false + part * pmf_q[j], power + part * pmf_p[j]
            if part < 1:
                break
        bound = Cost.of([(Decision(Barker(), sensitivity), k)]).max_true_positive_rate(rate)
        assert power <= bound < 1
        assert bound < 6 * power

    def test_no_access_no_power(self):
        assert Cost.of([]).max_true_positive_rate(0.01) == 0.01


def test_nothing_costs_nothing_and_infinity_lasts_forever():
    assert epsilon_of([], 1e-6) == 0
    assert delta_of([], 1.0) == 0
    assert max_draws([(Gaussian(1.0), 1)], math.inf, 1e-6) == math.inf
    assert max_draws([(Gaussian(0.01), 1)], 0.1, 1e-6) == 0


def test_unknown_accountant_and_negative_counts():
    with pytest.raises(ValueError, match="accountant"):
        epsilon_of([(Gaussian(1.0), 1)], 1e-6, "sommer")
    with pytest.raises(ValueError, match="count"):
        epsilon_of([(Gaussian(1.0), -1)], 1e-6)


def test_whole_settings_end_where_the_next_one_does_not_fit():
    """Upwards (a number of releases), and downwards (the least noise that is a whole number)."""
    releases = calibrate(lambda k: [(Gaussian(40.0), k)], 1.0, 1e-6, low=1, high=10**6, largest=True, whole=True)  # fmt: skip
    assert epsilon_of([(Gaussian(40.0), releases)], 1e-6) <= 1
    assert epsilon_of([(Gaussian(40.0), releases + 1)], 1e-6) > 1
    noise = calibrate(lambda z: [(Gaussian(z), 100)], 1.0, 1e-6, low=1, high=10**6, whole=True)
    assert epsilon_of([(Gaussian(noise), 100)], 1e-6) <= 1
    assert epsilon_of([(Gaussian(noise - 1), 100)], 1e-6) > 1
    assert calibrate(lambda k: [(Gaussian(1e9), k)], 1.0, 1e-6, low=1, high=7, largest=True, whole=True) == 7  # fmt: skip
    with pytest.raises(ValueError, match="no whole number"):
        calibrate(lambda k: [(Gaussian(1.0), k)], 1.0, 1e-6, low=1.2, high=1.8, whole=True)
    with pytest.raises(ValueError, match="fewer iterations are needed"):
        calibrate(lambda z: [(Gaussian(z), 100)], 1.0, 1e-6, high=2)


def test_nothing_and_nearly_nothing():
    assert max_draws([], 1.0, 1e-6) == math.inf
    assert max_draws([], 1.0, 1e-6, other_accesses=[(Gaussian(1.0), 1)]) == 0
    assert max_draws([(Gaussian(1e10), 1)], 1.0, 1e-6) >= 2**50
