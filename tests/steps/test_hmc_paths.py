"""DPHMC: recorded paths lead back to where they came from, preserve volume, and may end anywhere.

Broken integrators must be found.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pymc_dp import DPHMC, Barker, PrivacyBudget
from pymc_dp.steps import accept_reject
from pymc_dp.steps.accept_reject import State
from pymc_dp.steps.hmc import Phase, leapfrog
from tests.exactness.targets import (
    BANANA,
)
from tests.exactness.test_exactness import HUGE, reference
from tests.steps.hmc_building import (
    PAID,
    audit,
    build,
    leapfrog_with_friction,
    start,
    watching,
)

# ---------------------------------------------------------------- 2. paths lead back


def recorded(target, mass, *, noise=1.0, n=20, seed=3, **options):
    """A step without a budget and its paths, from exact draws."""
    step = build(target, mass=mass, noise=noise, budget=None, record_trajectories=True, **options)
    start(step, seed)
    for theta in reference(target, 1.0)[:n]:
        step.transition(theta)
    assert len(step.trajectories) == n
    return step


def back_along(step, trajectory, mover=leapfrog):
    """Turn the momentum at the end of a path, and feed its gradients in reverse order."""
    end, others = trajectory.phases[-1], [f.gradient for f in trajectory.phases[-2::-1]]
    turned = Phase(end.theta, -end.momentum, end.gradient)
    feed = iter(others)
    return [
        turned,
        *mover(turned, lambda *_: next(feed), step.coordinates, trajectory.step_size, len(others)),
    ]


def largest_gap(step, trajectory, **options):
    """Distance between a path and the one back, relative to its size."""
    there, back = trajectory.phases, back_along(step, trajectory, **options)[::-1]
    size = max(np.abs(f.theta).max() for f in there), max(np.abs(f.momentum).max() for f in there)
    return max(
        max(
            np.abs(f.theta - b.theta).max() / size[0],
            np.abs(f.momentum + b.momentum).max() / size[1],
        )
        for f, b in zip(there, back, strict=True)
    )


@pytest.mark.parametrize("mass", ["diagonal", "dense", "identity"])
def test_paths_lead_back(mass):
    """To 12 digits, with noise and half of all gradients clipped."""
    options = {"step_size": 0.25, "n_leapfrog": 7, "step_size_jitter": 0.3}
    step = recorded(BANANA, mass, **options)
    for trajectory in step.trajectories:
        assert len(trajectory.phases) == 8
        assert largest_gap(step, trajectory) < 1e-12
    broken = functools.partial(leapfrog_with_friction, friction=0.999)
    assert largest_gap(step, step.trajectories[0], mover=broken) > 1e-6


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_log_ratios_there_and_back_are_negatives(mass, monkeypatch):
    """To rounding, with records' log-ratios clipped or not; distances, that decide on costs, are equal to the last digit."""
    step = recorded(BANANA, mass, step_size=0.5, n_leapfrog=5)
    for bound in (HUGE, 0.02):
        step.__dict__["clip_bound"] = bound
        seen = []
        monkeypatch.setattr(
            accept_reject, "decide", lambda rule, x, bits, s=seen: s.append(x) or False
        )
        for trajectory in step.trajectories:
            there, back = trajectory.phases, back_along(step, trajectory)
            back[-1] = back[-1]._replace(
                theta=there[0].theta
            )  # equal but for rounding, as shown above
            distances = []
            for path in (there, back):
                old = State(path[0].theta, step.likelihood.log_prior(path[0].theta))
                move = step._move_along(old, path)
                step.choose(move, Barker(), step.log_ratio(move))
                distances.append(move.distance)
            assert distances[0] == distances[1] > 0
            assert seen[-2] == pytest.approx(-seen[-1], rel=1e-11, abs=1e-10)
        assert np.std(seen) > 0.1


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_volume_is_preserved(mass):
    """The Jacobian determinant of a path, with its noise held fixed, is 1, although gradients are clipped."""
    step = build(BANANA, mass=mass, step_size=0.4, n_leapfrog=4)
    coordinates, exact = step.coordinates, reference(BANANA, 1.0)
    rng = np.random.default_rng(5)

    def end(origin, z, noise, mover):
        feed = iter(noise)

        def gradient_at(theta, is_last=False):
            return step._gradient(theta, 0.0, None) + next(feed)

        theta = coordinates.moved(origin, z[:2])
        (*_, last) = mover(
            Phase(theta, z[2:], gradient_at(theta)), gradient_at, coordinates, 0.4, 4
        )
        return np.append(
            coordinates._back @ last.theta if mass == "dense" else coordinates._back * last.theta,
            last.momentum,
        )

    def determinant(i, mover=leapfrog):
        z, noise, h = (
            np.append(np.zeros(2), rng.standard_normal(2)),
            rng.standard_normal((5, 2)),
            1e-4,
        )
        moves = [
            (end(exact[i], z + h * e, noise, mover) - end(exact[i], z - h * e, noise, mover))
            / (2 * h)
            for e in np.eye(4)
        ]
        return np.linalg.det(np.array(moves))

    found = np.array([determinant(i) for i in range(15)])
    # Differences meet kinks, where a record begins to be clipped: rarely, and by little.
    assert np.abs(found - 1).max() < 5e-3 and np.median(np.abs(found - 1)) < 1e-5
    friction = functools.partial(leapfrog_with_friction, friction=0.99)
    assert determinant(0, friction) == pytest.approx(0.99 ** (2 * 4), abs=1e-4)


# Paths that leave the numbers, and paths that are too long.


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"step_size": 1e200}, {"max_distance": 1e-7}], ids=str)
@pytest.mark.parametrize("private", [True, False])
def test_diverging_paths_are_rejected_without_data(two_variable_model, options, private):
    """Rejected without a look at the data, and without an error, from parameters on the log scale too."""
    budget = PrivacyBudget(8.0, 1e-5, chains=1) if private else None
    settings = (
        {"step_size": 0.1, "n_leapfrog": 4, "max_distance": 5.0, "mass_matrix": [75.0, 150.0]}
        | PAID
        | options
    )
    step = start(DPHMC(budget=budget, model=two_variable_model, reproducible=True, **settings))
    point = two_variable_model.initial_point()
    with watching(step) as events:
        for _ in range(8):
            after, (statistics,) = step.step(point)
            assert after is point and not statistics["accepted"] and not statistics["exhausted"]
            assert statistics["step_distance"] == 0
    kinds = [kind for kind, _ in events]
    assert set(kinds) == {"gradient", "noise"} | ({"charge"} if private else set())
    if private:
        audit(step, events, step._allocation)
