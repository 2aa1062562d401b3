"""NUTS on densities that are given as functions: walls, wrong scales, and seeds."""

import numpy as np
import pytest

from pymc_dp.scores.nuts import Nuts


def half_normal(x):
    """Beyond the wall the density is zero, or not a number."""
    if x[0] < 0:
        return (-np.inf if x[0] > -2 else np.nan), np.full(1, np.nan)
    return -(x @ x) / 2, -x


def banana(x):
    """The second coordinate is x^2 on average: a wrong root and a start in a tail."""
    r = x[1] - x[0] ** 2
    return -(x[0] ** 2) / 2 - 2 * r**2, np.array([4 * x[0] * r - x[0], -4 * r])


def draws_of(log_density, start, root, seed=1, n=1000, n_tune=200):
    nuts, path = Nuts(log_density, np.zeros(len(start)), root, np.random.default_rng(seed)), []
    for i in range(n_tune + n):
        if i == n_tune:
            nuts.stop_tuning()
        start, stats = nuts.move(start)
        path.append((*start, stats["diverging"], stats["step_size"]))
    return np.array(path[n_tune:])


def test_a_wall_is_a_divergence_and_no_error():
    found = draws_of(half_normal, np.array([4.0]), 2 * np.eye(1))
    assert np.isfinite(found).all() and (found[:, 0] >= 0).all() and found[:, 1].any()
    assert found[:, 0].mean() == pytest.approx((2 / np.pi) ** 0.5, abs=0.1)
    assert (found[:, 0] ** 2).mean() == pytest.approx(1, abs=0.15)


def test_any_root_and_start_have_the_density():
    found = draws_of(banana, np.array([6.0, -9.0]), np.array([[0.3, 0.0], [1.5, 3.0]]))
    assert found[:, 0].mean() == pytest.approx(0, abs=0.15)
    assert found[:, 0].var() == pytest.approx(1, abs=0.2)
    assert found[:, 1].mean() == pytest.approx(1, abs=0.2)
    assert (found[:, 3] == found[0, 3]).all()  # adapted before


def test_the_same_seed_gives_the_same_draws():
    one, same, other = (draws_of(banana, np.ones(2), np.eye(2), s, 5, 20) for s in (1, 1, 2))
    assert (one == same).all() and (one != other).any()
