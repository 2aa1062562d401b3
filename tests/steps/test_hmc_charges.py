"""DPHMC: an instrumented likelihood counts what is accessed, and that is what was charged.

Broken samplers must be found.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import DPHMC, DPPenalty, Penalty, PrivacyBudget, RandomWalk
from pymc_dp.privacy.accounting.composition import renyi_to_epsilon
from pymc_dp.privacy.mechanisms.mechanism import Decision, Gaussian
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision
from pymc_dp.steps import base
from tests.exactness.targets import (
    TWO_VARIABLES,
    compiled_once,
)
from tests.steps.hmc_building import (
    PAID,
    PATH,
    Leak,
    audit,
    build,
    noise_sd,
    paid_step,
    start,
    watching,
)
from tests.terms import clipped_grad_steps

# ---------------------------------------------------------------- 4. what is accessed is what is paid for


def exhaust(step, seed=1, limit=2000):
    """All draws of a chain, the state in which it ends, and everything that happened."""
    step.set_rng(np.random.default_rng(seed))
    step.stop_tuning()
    point, n = step.likelihood.unravel(np.array([0.3, 0.5])), 0
    with watching(step) as events:
        while n < limit:
            point, (statistics,) = step.step(point)
            if statistics["exhausted"]:
                break
            n += 1
    return n, point, events


VARIANTS = {
    "Barker": {},
    "penalty, no reuse": {"rule": Penalty(1.2), "reuse_gradient": False},
    "MALA, jitter, add_remove, tempered": {
        "n_leapfrog": 1, "step_size_jitter": 0.3, "adjacency": "add_remove", "temperature": 0.7, "epsilon": 3.0, "laziness": 0.9,
    },
    "max_distance, noise multiplier": {"max_distance": 1.0, "noise_multiplier": 8.0},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_accesses_are_what_was_charged(name):
    """Counted, in order, at their true cost: within 2 % of the charge, which is rounded up; together within the budget."""
    step = paid_step(**VARIANTS[name])
    total = 0.0
    for seed in (1, 2):
        n, point, events = exhaust(step, seed)
        allowance = step._allocation
        accessed = audit(step, events, allowance)
        count = {
            kind: sum(k == kind for k, _ in events)
            for kind in ("gradient", "noise", "decision", "move")
        }
        paths = n + (events[-1][0] == "refusal" and isinstance(events[-1][1][0][0], Decision))
        steps = step.n_leapfrog
        assert (
            count["gradient"]
            == count["noise"]
            == (paths * steps + 1 if step.reuse_gradient else paths * (steps + 1))
        )
        # Paths that are too long need no decision.
        assert 0 < count["decision"] == count["move"] - (paths - n) <= n < 2000
        order = [allowance.filter.share.order]
        cost = sum(k * float(m.renyi(order)[0]) for m, k in accessed)
        assert cost > 0.97 * allowance.filter.spent > 0.8 * allowance.filter.share.rho
        # After the end nothing is touched any more.
        with watching(step) as events:
            for _ in range(20):
                again, (statistics,) = step.step(point)
                assert again is point and statistics["exhausted"]
        assert {kind for kind, _ in events} == {"refusal"}
        total += cost
    assert renyi_to_epsilon(*order, total, 1e-5) <= step.budget.epsilon
    assert step.budget.spent() <= step.budget.epsilon


class HalfTheNoise(DPHMC):
    def _gradient_at(self, theta, keeps_logp=False):
        noise = self.gradient_noise_multiplier * self.sensitivity_factor * self.gradient_clip_bound
        return self._gradient(theta, noise / 2, self._bits, keeps_logp=keeps_logp)


class OneGradientFree(DPHMC):
    def charge(self, accesses):
        super().charge([(m, k - isinstance(m, Gaussian)) for m, k in accesses])


class FirstGradientFree(DPHMC):
    def transition(self, theta):
        state = self.current(theta)
        if state.gradient is None:
            state.gradient = self._gradient_at(theta)
        return super().transition(theta)


class DecisionFree(DPHMC):
    def charge(self, accesses):
        if isinstance(accesses[0][0], Gaussian):
            super().charge(accesses)


class LikelihoodNotPaid(DPHMC):
    def charge_decision(self, move):
        self.likelihood.logp(move.new.theta)
        return super().charge_decision(move)


class DecisionPaidLater(DPHMC):
    def charge_decision(self, move):
        self._due = self.family.at(move.distance)
        return self._due

    def choose(self, move, rule, log_ratio):
        result = super().choose(move, rule, log_ratio)
        self.charge(((self._due, 1),))
        return result


class GoesOn(DPHMC):
    def charge(self, accesses):
        with contextlib.suppress(base._AllocationUsedUp):
            super().charge(accesses)


class HalfTheDistance(DPHMC):
    def charge_decision(self, move):
        decision = self.family.at(move.distance / 2)
        self.charge(((decision, 1),))
        return decision


class ExactEnd(DPHMC):
    """The end of a path gets a second, exact look."""

    def _move_along(self, old, path):
        self._gradient(path[-1].theta, 0.0, self._bits)
        return super()._move_along(old, path)


@pytest.mark.parametrize(
    "fault",
    [HalfTheNoise, OneGradientFree, FirstGradientFree, DecisionFree, LikelihoodNotPaid, DecisionPaidLater, GoesOn, HalfTheDistance, ExactEnd],
)  # fmt: skip
def test_what_is_not_paid_is_found(fault):
    step = paid_step(fault, chains=1)
    _, _, events = exhaust(step, limit=80)
    with pytest.raises(Leak):
        audit(step, events, step._allocation)


@pytest.mark.parametrize("reuse_gradient", [True, False])
def test_what_is_kept_of_a_state_is_of_that_state(reuse_gradient, monkeypatch):
    """Log-likelihoods came with the gradient at the end of a path, if they are not of an older state."""
    step = paid_step(epsilon=30.0, chains=1, reuse_gradient=reuse_gradient)
    start(step)
    point, outcomes, computed = step.likelihood.unravel(np.array([0.3, 0.5])), set(), []
    batch = step.likelihood._batch
    real = batch.all_records
    for _ in range(60):
        with monkeypatch.context() as patch:
            patch.setattr(batch, "all_records", lambda t: computed.append(t) or real(t))
            point, (statistics,) = step.step(point)
        state, theta = step._current, step.likelihood.ravel(point)
        assert not statistics["exhausted"] and np.array_equal(state.theta, theta)
        kept = step.likelihood._latest._found[theta.tobytes()]
        assert len(step.likelihood._latest._found) <= 2
        np.testing.assert_allclose(kept, step.likelihood.logp(theta), rtol=1e-12)
        outcomes.add(bool(statistics["accepted"]))
    assert outcomes == {True, False}
    assert len({theta.tobytes() for theta in computed}) == len(computed) >= 1  # each state once


@pytest.mark.slow
def test_gradients_in_a_model_with_another_step():
    """One more gradient whenever the other step has moved, and it is paid."""
    budget = PrivacyBudget(8.0, 1e-5, chains=1)
    model = TWO_VARIABLES.model()
    options = PATH | PAID | {"clip_bound": 0.1, "gradient_clip_bound": 0.1}
    step = build(TWO_VARIABLES, variables=[0], budget=budget, model=model, **options)
    with compiled_once(TWO_VARIABLES.name), model:
        other = DPPenalty(
            [model["b"]], budget=budget, clip_bound=0.1, proposal=RandomWalk(1.0), noise_scale=1.0, reproducible=True
        )  # fmt: skip
    assert step.starting() == () and step.mechanisms()[0][1] == PATH["n_leapfrog"] + 1
    for method in (step, other):
        start(method)
    point, moved, rejected = step.likelihood.unravel(np.zeros(2)), True, 0
    for _ in range(1000):
        with watching(step) as events:
            point, (statistics,) = step.step(point)
        if statistics["exhausted"]:
            break
        gradients_made = sum(kind == "gradient" for kind, _ in events)
        assert gradients_made == PATH["n_leapfrog"] + moved
        assert events[0] == ("charge", ((Gaussian(25.0), gradients_made),))
        point, (statistics,) = other.step(point)
        moved = statistics["accepted"]
        rejected += not moved
    assert statistics["exhausted"] and rejected > 3


def test_starting_gradient_is_planned():
    step = paid_step()
    assert step.starting() == ((Gaussian(25.0), 1),)
    assert step.mechanisms()[0] == (Gaussian(25.0), 3) and isinstance(
        step.mechanisms()[1][0], PerProposalDecision
    )
    fresh = paid_step(reuse_gradient=False)
    assert fresh.starting() == () and fresh.mechanisms()[0] == (Gaussian(25.0), 4)


# What a record can do to a sum of gradients, and the noise on it.

ROWS = np.random.default_rng(41).normal(0.3, 1.0, size=(12, 2))


def plain_step(y, adjacency, step=DPHMC, **options):
    with compiled_once("plain", y.tobytes()), pm.Model():
        mu = pm.Normal("mu", 0, 5, shape=2)
        pm.Normal("y", mu, 1.0, observed=y)
        budget = PrivacyBudget(8.0, 1e-5, chains=3, adjacency=adjacency)
        settings = {
            "budget": budget, "mass_matrix": [[5.0, 2.0], [2.0, 4.0]], "step_size": 0.3, "n_leapfrog": 2, "clip_bound": 0.1,
            "gradient_clip_bound": 0.3, "gradient_noise_multiplier": 30.0, "reproducible": True, "temperature": 0.7,
        }  # fmt: skip
        return step(**settings | options)


def exact_sum(step, theta):
    steps, exponent = clipped_grad_steps(
        step.likelihood, theta, step.gradient_clip_bound, directions=step.coordinates.directions
    )
    return np.ldexp(steps.astype(float), exponent)


@pytest.fixture(scope="module")
def neighbours():
    """Steps on neighbouring data, by adjacency."""
    far = [np.vstack([ROWS, row]) for row in ((1e6, 1e6), (-1e6, -1e6))]
    return {
        "substitute": [plain_step(y, "substitute") for y in far],
        "add_remove": [plain_step(far[0], "add_remove"), plain_step(ROWS, "add_remove")],
    }


def check_noise(step, draw, sensitivity, n=2500, seed=3):
    """Noise has mean 0, and the standard deviation that was charged for this sensitivity: chi-square, in each direction."""
    start(step, seed)
    theta = np.array([0.4, -0.2])
    prior = step.coordinates.pull(step.likelihood.grad_log_prior(theta))
    exact = exact_sum(step, theta)
    noise = np.array([(draw(step, theta) - prior) / step.temperature - exact for _ in range(n)])
    ((charged, _),) = step.starting()
    z = noise / (charged.noise_multiplier * sensitivity)
    for column in (*z.T, (z[:, 0] + z[:, 1]) / math.sqrt(2)):
        tail = stats.chi2.cdf(column @ column, n)
        if min(tail, 1 - tail) < 1e-5 or 2 * stats.norm.sf(abs(column.sum()) / math.sqrt(n)) < 1e-5:
            raise Leak(f"variance {column @ column / n:.3f} of what was charged")


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_noise_has_the_size_that_was_charged(neighbours, adjacency):
    """Relative to what the exact sum of gradients can really change by."""
    one, two = neighbours[adjacency]
    sensitivity = np.linalg.norm(exact_sum(one, np.zeros(2)) - exact_sum(two, np.zeros(2)))
    most = one.gradient_clip_bound * (2 if adjacency == "substitute" else 1)
    assert 0.999 * most < sensitivity <= most
    check_noise(one, lambda step, theta: step._gradient_at(theta), sensitivity)
    assert one.family.sensitivity_per_distance == pytest.approx(0.7 * 0.1 * most / 0.3)
    sd = noise_sd(one) / one.temperature
    for factor in (0.5, 0.93):
        with pytest.raises(Leak):
            check_noise(
                one,
                lambda step, theta, f=factor: step._gradient(theta, f * sd, step._bits),
                sensitivity,
            )
