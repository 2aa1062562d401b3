"""Moves in nearly normal coordinates: on curved laws of two parameters, against quadrature."""

import numpy as np
import pytest

from pymc_dp.scores.transport import Transport

SUMS = np.array([0.3, -0.2])
#: Standard deviations of the sums, and of the prior.
NOISE, PRIOR = np.array([0.8, 0.25]), 1.5


def banana(theta):
    """The second sum has a mean with a curve in the first parameter."""
    a, b = theta
    return SUMS - np.array([a, b + 1.5 * a**2]), np.array([[1.0, 0.0], [3.0 * a, 1.0]])


def cubic(theta):
    """The same, with a stretched first parameter: the determinant varies."""
    a, b = theta
    mean = np.array([a + 0.5 * a**3, b + 1.5 * a**2])
    return SUMS - mean, np.array([[1.0 + 1.5 * a**2, 0.0], [3.0 * a, 1.0]])


def wave(theta):
    """The same mean for several values of the second parameter: the coordinates are not one-to-one."""
    a, b = theta
    return SUMS - np.array([a, np.sin(2 * b) + 0.2 * b]), np.array(
        [[1.0, 0.0], [0.0, 2 * np.cos(2 * b) + 0.2]]
    )


def half(theta):
    """Without means above a line."""
    return None if theta[1] > 0.6 else banana(theta)


def log_density(law, theta):
    found = law(theta)
    if found is None:
        return -np.inf
    return -np.sum((found[0] / NOISE) ** 2) / 2 - np.sum((theta / PRIOR) ** 2) / 2


def transport_of(law, centre=(0.2, -0.1)):
    centre = np.array(centre)
    pull = law(centre)[1].T * NOISE**-2.0

    def combined(theta):
        found = law(theta)
        return None if found is None else (pull @ found[0], pull @ found[1])

    return Transport(combined, centre, -centre / PRIOR**2, np.eye(2) / PRIOR**2)


def chain(transport, law, n, rng):
    """Draws, and the part of moves that were accepted."""
    place, draws, accepted = transport.place(np.array([0.2, -0.1])), [], 0
    for _ in range(n):
        new = transport.move(place, lambda theta: log_density(law, theta), rng)
        accepted += new is not place
        place = new
        draws.append(place.theta)
    return np.array(draws), accepted / n


def quadrature(law, reached=None):
    """Means of the parameters, of their squares and of their product, by a grid."""
    axes = np.linspace(-5, 4, 300), np.linspace(-14, 4, 700)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = np.array([log_density(law, theta) for theta in grid])
    p = np.exp(log_p - log_p.max())
    return p / p.sum() @ statistics(grid)


def statistics(theta):
    a, b = theta.T
    return np.column_stack([a, b, a**2, np.maximum(b, -3) ** 2, a * b])


def errors(draws, wanted, n_batches=40):
    """Differences from the means by quadrature, in standard errors of batches."""
    values = statistics(draws)
    batches = values.reshape(n_batches, -1, values.shape[1]).mean(axis=1)
    return np.abs(values.mean(axis=0) - wanted) / (batches.std(axis=0, ddof=1) / n_batches**0.5)


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "law",
    [banana, pytest.param(cubic, marks=SLOW), pytest.param(half, marks=SLOW)],
    ids=lambda f: f.__name__,
)
def test_moves_have_the_target(law):
    draws, rate = chain(transport_of(law), law, 8000, np.random.default_rng(1))
    assert (errors(draws, quadrature(law)) < 4).all()
    assert rate > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["log_det", "coordinates"])
def test_a_forgotten_factor_is_found(fault, monkeypatch):
    """Without the determinant, or with coordinates as if they were normal, the chain has another law."""
    transport = transport_of(cubic)
    solve, place = transport.solve, transport.place

    def faulty(place):
        if place is None:
            return None
        if fault == "log_det":
            return place._replace(log_det=0.0)
        return place._replace(coordinates=place.coordinates + 0.3)

    monkeypatch.setattr(transport, "solve", lambda x: faulty(solve(x)))
    monkeypatch.setattr(transport, "place", lambda x: faulty(place(x)))
    wrong, _ = chain(transport, cubic, 8000, np.random.default_rng(2))
    assert errors(wrong, quadrature(cubic)).max() > 6


def test_a_linear_law_has_normal_coordinates():
    """Then independent proposals are always accepted."""

    def linear(theta):
        slope = np.array([[1.0, 0.4], [0.0, 1.0]])
        return SUMS - slope @ theta, slope

    transport = transport_of(linear)
    draws, rate = chain(transport, linear, 400, np.random.default_rng(3))
    assert rate == 1
    coordinates = np.array([transport.at(theta)[0] for theta in draws])
    assert np.abs(coordinates.mean(axis=0)).max() < 0.3
    mode = transport.solve(np.zeros(2)).theta
    h = 1e-4
    for e in np.eye(2):
        up, down = (log_density(linear, mode + s * h * e) for s in (1, -1))
        assert abs(up - down) / (2 * h) < 1e-5


def test_positions_that_are_not_found_again_are_not_moved():
    transport = transport_of(wave)
    near, far = np.array([0.2, -0.1]), np.array([0.2, 3.0])
    np.testing.assert_allclose(transport.solve(transport.at(near)[0]).theta, near, atol=1e-6)
    assert transport.place(near) is not None
    assert transport.place(far) is None
    assert transport.at(np.array([np.nan, 0.0])) is None


@pytest.mark.parametrize("law", [cubic, wave], ids=lambda f: f.__name__)
def test_solutions_have_the_coordinates(law):
    transport, rng = transport_of(law), np.random.default_rng(4)
    n_found = 0
    for _ in range(100):
        coordinates = 2 * rng.standard_normal(2)
        if (place := transport.solve(coordinates)) is None:
            continue
        n_found += 1
        value, derivative = transport.at(place.theta)
        np.testing.assert_allclose(value, coordinates, atol=1e-6)
        assert np.linalg.slogdet(derivative)[1] == pytest.approx(place.log_det)
        step = 1e-6 * rng.standard_normal(2)
        change = (transport.at(place.theta + step)[0] - transport.at(place.theta - step)[0]) / 2
        np.testing.assert_allclose(change, derivative @ step, rtol=1e-4, atol=1e-12)
    assert n_found > 60
