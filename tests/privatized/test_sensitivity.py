"""Sensitivities against brute force over corners, grids and random pairs, and against rational numbers.

The searches do not use the proofs: no pair of records may be farther apart than the sensitivity, and some pair must attain
it. A sensitivity that is too small by a part in a thousand is found.
"""

import math

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from scipy.optimize import minimize

from pymc_dp.privatized import sensitivity_of_moments, sensitivity_of_table

SEED = 20
COLUMNS = [1, 2, 3, 5]


def moments(z):
    """First and second moments of records, shape (..., d) to (..., d (d + 3) / 2)."""
    z = np.asarray(z, dtype=float)
    rows, columns = np.triu_indices(z.shape[-1])
    return np.concatenate([z, z[..., rows] * z[..., columns]], axis=-1)


def distance(z, other, order):
    return np.linalg.norm(moments(z) - moments(other), ord=order, axis=-1)


def pairs(d, rng, n=20_000):
    """Random pairs of records, half of whose entries are at the ends."""
    return np.clip(rng.uniform(-2, 2, (n, 2, d)), -1, 1)


def farthest(d, order, rng):
    """Largest distance found by random search, then local optimisation."""
    found = pairs(d, rng)
    distances = distance(found[:, 0], found[:, 1], order)
    best = distances.max()
    for i in np.argsort(distances)[-5:]:
        result = minimize(
            lambda flat: -distance(*flat.reshape(2, d), order),
            found[i].ravel(),
            bounds=[(-1, 1)] * (2 * d),
        )
        best = max(best, -result.fun)
    return best


def check_no_pair_is_farther(claimed, d, order):
    rng = np.random.default_rng(SEED + d)
    assert farthest(d, order, rng) <= claimed * (1 + 1e-12)


@pytest.mark.parametrize("d", COLUMNS)
class TestMoments:
    @pytest.mark.parametrize("order", [1, 2])
    def test_no_pair_is_farther(self, d, order):
        check_no_pair_is_farther(sensitivity_of_moments(d, order=order), d, order)

    @pytest.mark.parametrize("order", [1, 2])
    def test_planted_fault(self, d, order):
        """The records that attain the sensitivity are found, so a claim that is too small is refuted."""
        with pytest.raises(AssertionError):
            check_no_pair_is_farther(0.999 * sensitivity_of_moments(d, order=order), d, order)

    def test_order_1_is_attained(self, d):
        other = np.full(d, -1 / (d + 1))
        assert distance(np.ones(d), other, 1) == pytest.approx(sensitivity_of_moments(d), rel=1e-14)

    def test_order_2_is_attained_at_corners(self, d):
        corners = np.array(list(product([-1.0, 1.0], repeat=d)))
        best = distance(corners[:, None], corners[None], 2).max()
        assert best == pytest.approx(sensitivity_of_moments(d, order=2), rel=1e-14)

    @pytest.mark.parametrize("order", [1, 2])
    def test_add_remove(self, d, order):
        claimed = sensitivity_of_moments(d, order=order, adjacency="add_remove")
        z = pairs(d, np.random.default_rng(SEED))[:, 0]
        assert np.linalg.norm(moments(z), ord=order, axis=-1).max() <= claimed
        most = np.linalg.norm(moments(np.ones(d)), ord=order)
        assert most == pytest.approx(claimed, rel=1e-14)

    def test_rounded_up_by_one_unit_at_most(self, d):
        one, two = (sensitivity_of_moments(d, order=order) for order in (1, 2))
        exact = Fraction(d * (d + 2) ** 2, 2 * (d + 1))
        assert exact <= Fraction(one) <= Fraction(math.nextafter(float(exact), math.inf))
        square = 4 * ((d + 1) ** 2 // 4)
        assert square <= Fraction(two) ** 2
        assert Fraction(math.nextafter(two, 0)) ** 2 < square


@pytest.mark.parametrize("order", [1, 2])
def test_a_grid_of_records_is_less_sensitive(order):
    grid = np.array(list(product(np.linspace(-1, 1, 9), repeat=2)))
    whole, found = (
        sensitivity_of_moments(2, order=order),
        sensitivity_of_table(moments(grid), order=order),
    )
    assert 0.95 * whole <= found <= whole * (1 + 1e-12)


def test_the_papers_sensitivity_is_valid_but_larger():
    """Ju et al. (2022), section 5: ``p**2 + 3 p + 3`` for p covariates."""
    for p in range(1, 30):
        assert sensitivity_of_moments(p + 1) < p**2 + 3 * p + 3
    assert sensitivity_of_moments(3) == 75 / 8


def naive_bayes(k):
    """All possible rows of counts: a class of two, k binary features given it."""
    rows = []
    for features in product([0, 1], repeat=k):
        for label in (0, 1):
            row = np.zeros((k, 2, 2), dtype=int)
            row[np.arange(k), label, features] = 1
            rows.append(row.ravel())
    return rows


class TestTables:
    @pytest.mark.parametrize("k", [1, 2, 3, 5, 6])
    def test_counts_of_naive_bayes(self, k):
        one, two = (sensitivity_of_table(naive_bayes(k), order=order) for order in (1, 2))
        assert one == 2 * k
        assert math.sqrt(2 * k) <= two <= math.nextafter(math.sqrt(2 * k), 99)
        assert Fraction(two) ** 2 >= 2 * k
        assert sensitivity_of_table(naive_bayes(k), adjacency="add_remove") == k

    @pytest.mark.parametrize("scale", [1.0, 0.1, 1e-200, 1e-310, 1e140])
    @pytest.mark.parametrize("order", [1, 2])
    def test_against_rational_numbers(self, scale, order):
        table = scale * np.random.default_rng(SEED).normal(size=(40, 6))
        exact = [[Fraction(x) for x in row] for row in table.tolist()]
        truth = max(
            sum(abs(x - y) ** order for x, y in zip(a, b)) for a, b in combinations(exact, 2)
        )
        found = Fraction(sensitivity_of_table(table, order=order)) ** order
        assert truth <= found
        assert scale < 1e-300 or found <= truth * (1 + Fraction(1, 10**14))

    def test_a_row_that_rounding_makes_look_smaller(self):
        """Added in floating point, the larger row is 1: the result allows for that."""
        table = [[1, 2.0**-53, 2.0**-53, 2.0**-53], [1 + 2.0**-52, 0, 0, 0]]
        found = sensitivity_of_table(table, adjacency="add_remove")
        assert Fraction(found) >= 1 + 3 * Fraction(2) ** -53

    def test_roots_of_whole_numbers_are_rounded_up(self):
        for n in range(1, 30):
            found = sensitivity_of_table(np.ones((1, n)), order=2, adjacency="add_remove")
            assert Fraction(math.nextafter(found, 0)) ** 2 < n <= Fraction(found) ** 2

    def test_one_possible_record(self):
        assert sensitivity_of_table([[1.0, 2.0]]) == 0
        assert 0 < sensitivity_of_table([[1e-300, 1.0], [0.0, 1.0]], order=2) <= 1.001e-300

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ([1.0, 2.0], "shape"),
            (np.zeros((0, 2)), "shape"),
            ([[math.nan]], "finite"),
            ([["a"]], "real numbers"),
            ([[1e151]], "at most 1e150"),
            (np.zeros((200_000, 1)), "too many"),
        ],
    )
    def test_bad_tables_are_refused(self, table, message):
        with pytest.raises(ValueError, match=message):
            sensitivity_of_table(table)


@pytest.mark.parametrize(
    ("function", "argument"), [(sensitivity_of_moments, 2), (sensitivity_of_table, [[1.0]])]
)
def test_bad_options_are_refused(function, argument):
    with pytest.raises(ValueError, match="order of the norm must be 1 or 2, got 3"):
        function(argument, order=3)
    with pytest.raises(ValueError, match="Unknown adjacency 'both'"):
        function(argument, adjacency="both")


def test_bad_numbers_of_columns_are_refused():
    with pytest.raises(ValueError, match="n_columns must be at least 1, got 0"):
        sensitivity_of_moments(0)
    with pytest.raises(TypeError, match="n_columns must be a whole number"):
        sensitivity_of_moments(2.5)
