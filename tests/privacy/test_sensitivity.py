"""Certified sensitivities: against closed forms, brute force and searches that know nothing of the proof.

Every bound is held against pairs of records that were found in another way: none may be farther
apart. The checks that a fault must fail take the function as an argument and are shown to fail.
"""

import math

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from pymc_dp.privacy import (
    Adjacency,
    bernstein,
    farthest_pair,
    quadratic_exponents,
    sensitivity_of,
    sensitivity_of_table,
)
from pymc_dp.privacy.bernstein import bound_maximum, power

SEED = 20
BOXES = [(-1, 1), (0, 1), (-2, 5), ([-1, 0, -2], [1, 1, 5]), ([-0.3, -1.2, 0.4], [0.9, 1.1, 2.5])]


def terms_of(z, exponents, weights=1.0):
    """Terms of records, shape (..., d) to (..., m), as anyone would write them."""
    return weights * np.prod(np.asarray(z, float)[..., None, :] ** np.asarray(exponents), axis=-1)


def distance(z, other, exponents, order, weights=1.0):
    change = terms_of(z, exponents, weights) - terms_of(other, exponents, weights)
    return np.linalg.norm(change, ord=order, axis=-1)


def farthest_found(exponents, lower, upper, order, rng, n_random=20_000, n_starts=6, weights=1.0):
    """Largest distance by random search, with many records at corners, then local optimisation."""
    d = np.shape(exponents)[1]
    lower, upper = np.broadcast_to(lower, d).astype(float), np.broadcast_to(upper, d).astype(float)
    unit = np.clip(rng.uniform(-0.5, 1.5, (n_random, 2, d)), 0, 1)
    pairs = lower + (upper - lower) * unit
    found = distance(pairs[:, 0], pairs[:, 1], exponents, order, weights)
    best = found.max()

    def loss(flat):
        return -distance(*flat.reshape(2, d), exponents, order, weights)

    for i in np.argsort(found)[-n_starts:]:
        result = minimize(loss, pairs[i].ravel(), bounds=[*zip(lower, upper)] * 2)
        best = max(best, -result.fun)
    return best


def grid_maximum(exponents, lower, upper, order, n):
    """Largest distance of two points of a grid, by brute force over all pairs."""
    d = np.shape(exponents)[1]
    axes = [
        np.linspace(a, b, n) for a, b in zip(np.broadcast_to(lower, d), np.broadcast_to(upper, d))
    ]
    t = terms_of(np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, d), exponents)
    return max(np.linalg.norm(t - row, ord=order, axis=1).max() for row in t)


def check(s, exponents, lower, upper, order, weights=1.0, tolerance=1e-9):
    """The witnesses are in the box and attain what they are said to attain; the gap is closed."""
    z, other = s.records
    assert np.all(np.asarray(lower) <= s.records)
    assert np.all(s.records <= np.asarray(upper))
    np.testing.assert_allclose(
        distance(z, other, exponents, order, weights), s.attained, rtol=1e-12
    )
    assert s.attained <= s.value <= s.attained * (1 + 2 * tolerance)


# Known values


@pytest.mark.parametrize("p", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_l1_of_the_moments_of_a_regression(p):
    """Of d = p + 1 columns: a closed form, proved in docs/privatized.md."""
    truth = (p + 1) * (p + 3) ** 2 / (2 * (p + 2))  # 16/3, 75/8, 72/5, 245/12
    exponents = quadratic_exponents(p + 1)
    s = sensitivity_of(exponents)
    check(s, exponents, -1, 1, 1)
    assert truth <= s.value <= truth * (1 + 1e-9)
    # Below the bound of the literature, p**2 + 3p + 3, which takes every term at its own worst.
    assert s.value < p**2 + 3 * p + 3


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_l2_of_the_moments_of_a_regression(p):
    """Attained at corners that differ in half of the columns: docs/privatized.md."""
    exponents = quadratic_exponents(p + 1)
    s = sensitivity_of(exponents, order=2)
    check(s, exponents, -1, 1, 2)
    corners = list(product([-1.0, 1.0], repeat=p + 1))
    truth = max(distance(a, b, exponents, 2) for a, b in combinations(corners, 2))
    assert truth == pytest.approx(2 * math.sqrt((p + 2) ** 2 // 4), rel=1e-12)
    assert truth <= s.value * (1 + 1e-15)
    assert s.value <= truth * (1 + 1e-9)


def test_moments_are_listed_once():
    exponents = quadratic_exponents(3)
    assert exponents.shape == (9, 3)
    assert len({tuple(row) for row in exponents}) == 9
    assert set(exponents.sum(axis=1)) == {1, 2}
    with pytest.raises(ValueError, match="n_columns must be at least 1, got 0"):
        quadratic_exponents(0)


def test_linear_statistics():
    lower, upper = np.array([-1.0, 0, -2.5]), np.array([1.0, 3, 4])
    widths = upper - lower
    for order in (1, 2):
        s = sensitivity_of(np.eye(3, dtype=int), lower, upper, order=order)
        truth = np.linalg.norm(widths, ord=order)
        assert truth <= s.value <= truth * (1 + 1e-13)
        np.testing.assert_array_equal(np.sort(s.records, axis=0), [lower, upper])


@pytest.mark.parametrize(
    ("lower", "upper"), [(-1, 1), (0, 1), (-2, 5), (-0.7, 0.4), (0.25, 0.5), (-3, -1)]
)
@pytest.mark.parametrize("order", [1, 2])
def test_a_cubic_of_one_variable(lower, upper, order):
    """Odd powers are monotone: closed form. Several powers together: a grid."""
    for e in (1, 3, 5):
        s = sensitivity_of([[e]], lower, upper, order=order)
        truth = Fraction(upper) ** e - Fraction(lower) ** e
        assert Fraction(s.attained) <= truth <= Fraction(s.value) <= truth * Fraction(1 + 1e-9)
    s = sensitivity_of([[1], [2], [3]], lower, upper, order=order)
    check(s, [[1], [2], [3]], lower, upper, order)
    brute = grid_maximum([[1], [2], [3]], lower, upper, order, 801)
    assert brute * (1 - 1e-4) <= s.attained <= s.value
    assert brute <= s.value * (1 + 1e-15)


def test_an_interior_optimum_of_one_variable():
    """``|a - b| + |a**2 - b**2|`` on [-1, 1] is largest at a = 1, b = 0: (1 - b)(2 + b) has its top at b = -1/2."""
    s = sensitivity_of([[1], [2]])
    assert 9 / 4 <= s.value <= 9 / 4 * (1 + 1e-9)
    np.testing.assert_allclose(np.sort(np.abs(s.records.ravel())), [0.5, 1], atol=1e-4)


# Against searches


@pytest.mark.parametrize(("lower", "upper"), BOXES)
@pytest.mark.parametrize("order", [1, 2])
def test_no_search_exceeds_the_bound(lower, upper, order):
    exponents = quadratic_exponents(3)
    s = sensitivity_of(exponents, lower, upper, order=order)
    check(s, exponents, lower, upper, order)
    found = farthest_found(exponents, lower, upper, order, np.random.default_rng(SEED))
    assert found <= s.value * (1 + 1e-14)
    assert found >= s.value * (1 - 1e-5)  # and the search is a good one


@pytest.mark.parametrize(("lower", "upper"), [(-1, 1), (0, 1), (-2, 5)])
@pytest.mark.parametrize("order", [1, 2])
def test_grids(lower, upper, order):
    """All pairs of a grid of 25 x 25 records (p = 1), and of 7 x 7 x 7 (p = 2): none farther, some nearly as far."""
    for columns, n in ((2, 25), (3, 7)):
        exponents = quadratic_exponents(columns)
        s = sensitivity_of(exponents, lower, upper, order=order)
        brute = grid_maximum(exponents, lower, upper, order, n)
        assert s.value * (1 - 0.02) <= brute <= s.value * (1 + 1e-14)


def by_signs(exponents, lower, upper, interior=True):
    """L1 sensitivity of a quadratic statistic in another way: largest range of ``s . t(z)`` over sign vectors s.

    A quadratic on a box is extreme on a face where it is stationary: each column is at one of its ends or free. Where
    the stationary system is singular, the extreme is attained on a smaller face too.
    """
    exponents = np.asarray(exponents)
    m, d = exponents.shape
    lower, upper = np.broadcast_to(lower, d).astype(float), np.broadcast_to(upper, d).astype(float)
    signs = np.array([(1, *rest) for rest in product([1, -1], repeat=m - 1)], float)
    linear, hessian = np.zeros((len(signs), d)), np.zeros((len(signs), d, d))
    for sign, row in zip(signs.T, exponents):
        columns = np.repeat(np.arange(d), row)
        if len(columns) == 1:
            linear[:, columns[0]] += sign
        else:
            a, b = columns
            hessian[:, a, b] += sign
            hessian[:, b, a] += sign
    highest, lowest = np.full(len(signs), -np.inf), np.full(len(signs), np.inf)
    for face in product([0, 1, 2] if interior else [0, 1], repeat=d):
        z = np.tile(np.where(np.array(face) == 1, upper, lower), (len(signs), 1))
        free = np.array(face) == 2
        use = np.ones(len(signs), bool)
        if free.any():
            z[:, free] = 0
            system = hessian[:, free][:, :, free]
            use = np.abs(np.linalg.det(system)) > 1e-9
            gradient = (linear + np.einsum("nab,nb->na", hessian, z))[:, free]
            z[np.ix_(use, free)] = -np.linalg.solve(system[use], gradient[use][..., None])[..., 0]
            use &= np.all((z >= lower) & (z <= upper), axis=1)
        value = np.einsum("nm,nm->n", signs, terms_of(z, exponents))
        highest = np.maximum(highest, np.where(use, value, -np.inf))
        lowest = np.minimum(lowest, np.where(use, value, np.inf))
    return (highest - lowest).max()


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_l1_by_enumeration_of_signs_and_faces(columns):
    rng = np.random.default_rng(SEED)
    exponents = quadratic_exponents(columns)
    boxes = [(-1, 1), (0, 1), (-2, 5)]
    boxes += [(rng.uniform(-2, 0, columns), rng.uniform(0.1, 2, columns)) for _ in range(4)]
    for lower, upper in boxes:
        truth = by_signs(exponents, lower, upper)
        s = sensitivity_of(exponents, lower, upper)
        assert truth * (1 - 1e-13) <= s.value <= truth * (1 + 1e-9)
    # Stationary points matter: without them the number is too small.
    assert by_signs(exponents, -1, 1, interior=False) < sensitivity_of(exponents).attained


def test_l1_of_three_covariates_by_signs_and_faces():
    np.testing.assert_allclose(by_signs(quadratic_exponents(4), -1, 1), 14.4, rtol=1e-12)


CUBICS = [e for e in product(range(4), repeat=2) if 1 <= sum(e) <= 3]


@pytest.mark.parametrize("order", [1, 2])
def test_polynomials_of_higher_degree(order):
    rng = np.random.default_rng(SEED)
    weights = rng.normal(size=len(CUBICS))
    s = sensitivity_of(CUBICS, [-1, -0.5], [0.8, 2], order=order, weights=weights)
    check(s, CUBICS, [-1, -0.5], [0.8, 2], order, weights)
    found = farthest_found(CUBICS, [-1, -0.5], [0.8, 2], order, rng, weights=weights)
    assert s.value * (1 - 1e-5) <= found <= s.value * (1 + 1e-14)


@st.composite
def statistics(draw):
    d = draw(st.integers(1, 2))
    row = st.lists(st.integers(0, 3), min_size=d, max_size=d)
    exponents = draw(st.lists(row, min_size=1, max_size=5))
    ends = st.integers(-8, 8).map(lambda k: k / 4)
    box = [sorted([draw(ends), draw(ends)]) for _ in range(d)]
    weights = [draw(st.sampled_from([-3.0, 0.0, 0.5, 1.0, 1.7])) for _ in exponents]
    lower, upper = zip(*box)
    return exponents, lower, upper, weights


@settings(max_examples=60, deadline=None)
@given(statistics(), st.sampled_from([1, 2]), st.integers(0, 2**32))
def test_random_pairs_of_random_statistics(statistic, order, seed):
    exponents, lower, upper, weights = statistic
    s = sensitivity_of(exponents, lower, upper, order=order, weights=weights, tolerance=1e-6)
    check(s, exponents, lower, upper, order, weights, tolerance=1e-6)
    unit = np.clip(np.random.default_rng(seed).uniform(-0.5, 1.5, (3000, 2, len(lower))), 0, 1)
    pairs = np.array(lower) + (np.array(upper) - np.array(lower)) * unit
    found = distance(pairs[:, 0], pairs[:, 1], exponents, order, weights)
    assert found.max() <= s.value * (1 + 1e-12) + 1e-300


# Properties


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("c", [1e-160, 1e-3, -7.0, 1e150])
def test_scaling(order, c):
    exponents = quadratic_exponents(2)
    one = sensitivity_of(exponents, -2, 5, order=order)
    many = sensitivity_of(exponents, -2, 5, order=order, weights=c)
    np.testing.assert_allclose(many.value, abs(c) * one.value, rtol=1e-14)
    # In other units of the columns: each term has its own power of the unit.
    units = sensitivity_of(exponents, -2 * abs(c) ** 0.5, 5 * abs(c) ** 0.5, order=order)
    back = abs(c) ** (-0.5 * exponents.sum(axis=1))
    assert units.value > 0
    again = sensitivity_of(
        exponents, -2 * abs(c) ** 0.5, 5 * abs(c) ** 0.5, order=order, weights=back
    )
    np.testing.assert_allclose(again.value, one.value, rtol=1e-8)


def test_smaller_boxes_and_fewer_terms_are_less_sensitive():
    exponents = quadratic_exponents(3)
    for order in (1, 2):
        all_terms = sensitivity_of(exponents, -1, 1, order=order).value
        assert sensitivity_of(exponents, -1, 0.9, order=order).value < all_terms
        assert sensitivity_of(exponents[1:], -1, 1, order=order).value < all_terms


def test_parts_without_a_common_column_add_up():
    one, two = quadratic_exponents(1), quadratic_exponents(2)
    both = np.block([[one, np.zeros((len(one), 2), int)], [np.zeros((len(two), 1), int), two]])
    for order in (1, 2):
        parts = [sensitivity_of(e, -1, 2, order=order).value ** order for e in (one, two)]
        whole = sensitivity_of(both, -1, 2, order=order).value ** order
        np.testing.assert_allclose(whole, sum(parts), rtol=4e-9)


def test_columns_that_do_not_occur_cost_nothing():
    s = sensitivity_of(np.eye(1, 40, dtype=int), 0, 1)
    assert 1 <= s.value <= 1 + 1e-13
    assert s.records.shape == (2, 40)


def test_what_cannot_move_does_not_count():
    exponents = [[1, 0], [0, 1], [1, 1], [0, 0], [2, 2]]
    s = sensitivity_of(exponents, [-1, 3], [1, 3])
    alone = sensitivity_of([[1], [2]], weights=[4, 9])
    np.testing.assert_allclose(s.value, alone.value, rtol=2e-9)
    assert np.all(s.records[:, 1] == 3)
    nothing = sensitivity_of(exponents, [2, 3], [2, 3])
    assert nothing.value == nothing.attained == 0
    assert sensitivity_of([[0, 0]]).value == 0


def test_far_from_the_origin_the_bound_holds_with_the_rounding():
    """A narrow box far out: the terms cancel, and what rounding leaves open is in the value."""
    for order in (1, 2):
        s = sensitivity_of([[1], [2]], 1e4, 1e4 + 1, order=order)
        truth = 1 + Fraction(20_001) ** order
        assert Fraction(s.attained) ** order <= truth <= Fraction(s.value) ** order
        assert s.value <= s.attained * (1 + 1e-5)


def test_a_search_cut_short_still_gives_a_bound():
    exponents = quadratic_exponents(4)
    short = sensitivity_of(exponents, max_boxes=100)
    assert short.attained <= 14.4 <= short.value
    assert short.value - short.attained > 1e-3
    rough = sensitivity_of(exponents, tolerance=0.05)
    assert 14.4 <= rough.value <= 14.4 * 1.06


# One record added or removed


@pytest.mark.parametrize("order", [1, 2])
def test_add_remove(order):
    exponents = [[0, 0], [1, 0], [0, 1], [2, 1]]
    s = sensitivity_of(exponents, [-2, -1], [1, 3], order=order, adjacency="add_remove")
    assert s.adjacency is Adjacency.ADD_REMOVE
    np.testing.assert_array_equal(s.records, [[-2, 3]])
    truth = np.linalg.norm([1, 2, 3, 12], ord=order)
    assert s.attained <= s.value
    np.testing.assert_allclose([s.attained, s.value], truth, rtol=1e-15)


# Tables


def naive_bayes(features):
    """Counts of (feature k is on, class c) and of (off, class c): one entry a feature and record."""
    rows = []
    for c, *x in product([0, 1], repeat=features + 1):
        row = np.zeros((features, 2, 2))
        row[np.arange(features), x, c] = 1
        rows.append(row.ravel())
    return np.array(rows)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6])
def test_counts_of_naive_bayes(k):
    one, two = (sensitivity_of_table(naive_bayes(k), order=order) for order in (1, 2))
    assert one.value == one.attained == 2 * k
    assert two.attained <= math.sqrt(2 * k) <= two.value <= math.nextafter(math.sqrt(2 * k), 99)
    assert Fraction(two.value) ** 2 >= 2 * k
    assert np.abs(np.subtract(*one.records)).sum() == 2 * k
    added = sensitivity_of_table(naive_bayes(k), order=1, adjacency="add_remove")
    assert added.value == k
    assert added.records.shape == (1, 4 * k)


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-200, 1e200])
@pytest.mark.parametrize("order", [1, 2])
def test_tables_against_rational_numbers(scale, order):
    table = scale * np.random.default_rng(SEED).normal(size=(40, 6))
    s = sensitivity_of_table(table, order=order)
    exact = [[Fraction(x) for x in row] for row in table.tolist()]
    truth = max(sum(abs(x - y) ** order for x, y in zip(a, b)) for a, b in combinations(exact, 2))
    assert Fraction(s.attained) ** order <= truth <= Fraction(s.value) ** order
    assert s.value <= s.attained * (1 + 1e-14)


def test_a_row_that_rounding_makes_look_smaller():
    """Added in floating point, the larger row is 1, and the other is found instead: the value allows for that."""
    table = [[1, 2.0**-53, 2.0**-53, 2.0**-53], [1 + 2.0**-52, 0, 0, 0]]
    s = sensitivity_of_table(table, adjacency="add_remove")
    assert s.attained == 1 + 2.0**-52
    assert Fraction(s.value) >= 1 + 3 * Fraction(2) ** -53


@pytest.mark.parametrize("n", range(1, 30))
def test_roots_are_rounded_outwards(n):
    s = sensitivity_of(np.eye(n, dtype=int)[:1], 0, 1, order=2, weights=math.sqrt(n))
    table = sensitivity_of_table(
        np.eye(n, 2 * n, dtype=int).sum(axis=0)[None], order=2, adjacency="add_remove"
    )
    assert Fraction(table.attained) ** 2 <= n <= Fraction(table.value) ** 2
    assert table.value <= math.nextafter(table.attained, 99)
    assert Fraction(s.attained) <= Fraction(math.sqrt(n)) <= Fraction(s.value)


def test_a_table_of_a_grid_is_less_than_the_box():
    grid = np.linspace(-1, 1, 9)
    exponents = quadratic_exponents(2)
    table = terms_of(np.array(list(product(grid, repeat=2))), exponents)
    s = sensitivity_of_table(table)
    assert 0.95 * 16 / 3 < s.value <= sensitivity_of(exponents).value


def test_one_possible_record_has_nothing_to_hide():
    assert sensitivity_of_table([[1.0, 2.0]]).value == 0
    assert sensitivity_of_table([[1e-300, 1.0], [0.0, 1.0]], order=2).value >= 1e-300


# Bernstein form


@given(
    st.fractions(-1, 1),
    st.fractions(-1, 1),
    st.integers(0, 5),
    st.integers(0, 3),
    st.fractions(0, 1),
)
def test_coefficients_of_powers(lower, upper, exponent, more, at):
    degree = exponent + more
    c = power(lower, upper, exponent, degree)
    basis = [math.comb(degree, k) * at**k * (1 - at) ** (degree - k) for k in range(degree + 1)]
    value = sum(Fraction(x) * b for x, b in zip(c, basis))
    assert abs(value - (lower + (upper - lower) * at) ** exponent) <= 2.0**-53


def test_halves_are_the_same_polynomial():
    rng = np.random.default_rng(SEED)
    c = rng.normal(size=(7, 2, 3, 5))
    boxes = bernstein._Boxes(c, np.zeros((7, 2)), np.ones((7, 2)), np.arange(7))
    halves = bernstein._halves(boxes, np.abs(c).sum(axis=1))
    assert sum(len(h.piece) for h in halves) == 14

    def at(coefficients, x):
        for t in x:
            n = coefficients.shape[1] - 1
            k = np.arange(n + 1)
            weights = [math.comb(n, i) for i in k] * t**k * (1 - t) ** (n - k)
            coefficients = np.tensordot(coefficients, weights, axes=(1, 0))
        return coefficients

    for half in halves:
        for part, corner, width, piece in zip(*half):
            x = rng.uniform(size=2)
            np.testing.assert_allclose(at(part, x), at(c[piece], corner + width * x), rtol=1e-10)


def test_a_maximum_in_the_interior_of_a_piece():
    """``1 - (x - 1/3)**2 - (y - 2/5)**2``, second of two pieces."""
    ones = np.ones(3)
    x, y = (power(-Fraction(a), 1 - Fraction(a), 2, 2) for a in (Fraction(1, 3), Fraction(2, 5)))
    p = 1 - np.multiply.outer(x, ones) - np.multiply.outer(ones, y)
    bound, piece, position = bound_maximum(
        np.stack([p - 0.1, p])[:, None], magnitude=2, error=1e-15, tolerance=1e-9, max_boxes=10**5
    )
    assert 1 <= bound <= 1 + 2e-9
    assert piece == 1
    np.testing.assert_allclose(position, [1 / 3, 2 / 5], atol=1e-4)


# Planted faults


def drop_the_interior(monkeypatch):
    """Look at corners only: both records at ends of every column."""
    init = farthest_pair._Column.__init__

    def corners_only(self, low, high, exponents, j, order):
        init(self, low, high, exponents, j, order)
        self.ends = list(product([0, 1], repeat=2))

    monkeypatch.setattr(farthest_pair._Column, "__init__", corners_only)


def believe_all_boxes_symmetric(monkeypatch):
    init = farthest_pair._Column.__init__

    def symmetric(self, low, high, *rest):
        init(self, -high, high, *rest)
        self._box = low, high

    monkeypatch.setattr(farthest_pair._Column, "__init__", symmetric)


def keep_one_half(monkeypatch):
    halves = bernstein._halves
    monkeypatch.setattr(bernstein, "_halves", lambda *a: halves(*a)[:1])


@pytest.mark.parametrize(
    ("plant", "exponents", "lower", "upper", "order"),
    [
        (drop_the_interior, quadratic_exponents(2), -1, 1, 1),
        (drop_the_interior, quadratic_exponents(3), -1, 1, 1),
        (believe_all_boxes_symmetric, quadratic_exponents(2), -5, 2, 2),
        (keep_one_half, quadratic_exponents(2), -2, 5, 2),
    ],
)
def test_the_searches_find_planted_faults(monkeypatch, plant, exponents, lower, upper, order):
    found = farthest_found(exponents, lower, upper, order, np.random.default_rng(SEED))
    assert found <= sensitivity_of(exponents, lower, upper, order=order).value
    plant(monkeypatch)
    assert found > sensitivity_of(exponents, lower, upper, order=order).value * (1 + 1e-9)


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exponents": [[0.5, 1]]}, "float64"),
        ({"exponents": [[1.0, 2.0]]}, "Pass integers"),
        ({"exponents": [[-1, 1]]}, "at least 0, got -1"),
        ({"exponents": [1, 2]}, r"\(2,\)"),
        ({"exponents": np.zeros((0, 2), int)}, r"\(0, 2\)"),
        ({"lower": 2}, "2.0 > 1.0 in column 0"),
        ({"lower": [-1, 3], "upper": [1, 2]}, "3.0 > 2.0 in column 1"),
        ({"upper": np.inf}, "upper must be finite"),
        ({"lower": [np.nan, 0]}, "lower must be finite"),
        ({"lower": [0, 0, 0]}, "one number or 2"),
        ({"weights": [1.0, 2.0]}, "weights must be finite, one number or 1"),
        ({"order": 3}, "1 or 2, got 3"),
        ({"order": np.inf}, "1 or 2, got inf"),
        ({"tolerance": 0.0}, r"\[1e-12, 1\), got 0.0"),
        ({"adjacency": "replace"}, "replace"),
        ({"upper": 1e200, "exponents": [[1, 1]]}, "beyond the range"),
        ({"exponents": np.eye(14, dtype=int), "lower": 0}, "Split the terms"),
        ({"exponents": [[5000, 0], [0, 2]]}, "Split the terms"),
    ],
)
def test_bad_statistics_are_refused(change, message):
    arguments = {"exponents": [[1, 1]], "lower": -1, "upper": 1, **change}
    with pytest.raises(ValueError, match=message):
        sensitivity_of(**arguments)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1.0, 2.0], r"\(2,\)"),
        ([[np.inf]], "finite"),
        (np.zeros((0, 2)), r"\(0, 2\)"),
        ([[1e305]], "1e\\+305"),
        (np.zeros((200_000, 1)), "200000 possible records"),
    ],
)
def test_bad_tables_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        sensitivity_of_table(table)


def test_a_sensitivity_is_read_in_one_line():
    s = sensitivity_of(quadratic_exponents(2), order=2)
    assert "\n" not in str(s)
    assert f"L2 sensitivity at most {s.value!r} (substitute)" in str(s)
    assert repr(s.attained) in str(s)
    with pytest.raises(ValueError, match="read-only"):
        s.records[0, 0] = 2
