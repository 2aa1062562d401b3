"""DPSGHMC: what it is charged is what it accesses; and what a record can change."""

import functools
import itertools
import math

import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPSGHMC, PrivacyBudget
from pymc_dp.model import RecordLikelihood
from pymc_dp.privacy.accounting.calibration import epsilon_of
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.privacy.mechanisms.subsampled import SampledGaussian, Sampling
from pymc_dp.steps import noisy_gradients as gradients
from pymc_dp.steps import sghmc
from tests.steps.sghmc_building import (
    DENSE,
    MEAN,
    REGRESSION_SD,
    N,
    W,
    Y,
    compiled_once,  # noqa: F401 - a fixture of all tests
    constant,
    make,
    record_randomness,
    start,
)

# ---------------------------------------------------------------- accounting


class Instrumented:
    """A likelihood that notes each access to the records."""

    def __init__(self, likelihood):
        self.likelihood, self.accesses = likelihood, []

    def __getattr__(self, name):
        if name in ("logp", "logp_at", "clipped_change", "clipped_grad"):
            raise AssertionError(f"{name} looks at the records, and is not accounted for")
        return getattr(self.likelihood, name)

    def total(self, term, index=None):
        assert not term.keeps_logp  # log-likelihoods are not accounted for
        self.accesses.append((term.bound, None if index is None else len(index)))
        return self.likelihood.total(term, index)


def instrument(step):
    spy = Instrumented(step.likelihood)
    object.__setattr__(step, "likelihood", spy)
    step._gradient._likelihood = spy
    return spy.accesses


KINDS = {
    "fixed, substitute": ("substitute", {"batch_size": 6}, Sampling.WITHOUT_REPLACEMENT),
    "Poisson, substitute": ("substitute", {"sampling_probability": 0.1}, Sampling.POISSON),
    "Poisson, add or remove": ("add_remove", {"sampling_probability": 0.1}, Sampling.POISSON),
    "all, add or remove": ("add_remove", {"sampling_probability": 1.0}, None),
}


def stairs(t):
    """Few step sizes, as costs take a while to compute."""
    return 0.002 / (1 + t // 16) ** 0.5


def private_step(kind, made=DPSGHMC):
    adjacency, batch, sampling = KINDS[kind]
    budget = PrivacyBudget(1.5, 1e-5, chains=1, adjacency=adjacency, accountant="rdp")
    # The noise multiplier is 4 at first on batches, 35 on all records.
    return make(
        MEAN, made, budget=budget, reproducible=False, step_size=stairs, gradient_clip_bound=0.5, n_steps=3,
        friction=(0.5 if sampling else 0.3) * (1 if adjacency == "add_remove" else 4), **batch,
    )  # fmt: skip


def check_charges(kind, monkeypatch, made=DPSGHMC):
    """Run a chain to its end: what happened, by the likelihood and the noise, composes to what was charged."""
    adjacency, _, sampling = KINDS[kind]
    _, _, scales = record_randomness(monkeypatch)
    step = private_step(kind, made=made)
    accesses = instrument(step)
    planned = step.budget.expected_draws()
    start(step)
    point, draws = MEAN.initial_point(), 0
    while True:
        point, (statistics,) = step.step(point)
        if statistics["exhausted"]:
            break
        draws += 1
        assert len(accesses) == len(scales) == 3 * draws
        assert statistics["epsilon_spent"] <= 1.5
    for _ in range(5):
        step.step(point)
    assert draws == planned > 20
    assert len(accesses) == len(scales) == 3 * draws, "the data were looked at after the end"
    assert step.likelihood is not None and statistics["epsilon_spent"] == pytest.approx(
        1.5, rel=0.06
    )

    def happened(shrink=1.0):
        """The mechanisms that were run, from the bounds and noises that were seen."""
        q = 6 / N
        for (bound, _), scale in zip(accesses, scales, strict=True):
            z = shrink * scale / (bound * (2 if adjacency == "substitute" else 1))
            yield (
                (Gaussian(z) if sampling is None else SampledGaussian(z, q, sampling, adjacency)),
                1,
            )

    charged = [access for t in range(1, draws + 1) for access in step.schedule()(t)]
    noises = [m.noise_multiplier for m, k in charged for _ in range(k)]
    actual = [m.noise_multiplier for m, _ in happened()]
    assert len(noises) == len(actual)
    ratio = np.array(actual) / noises
    assert ratio.min() >= 1 and ratio.max() <= 1.01 * (1 + 1e-9)
    assert {m for m, _ in charged} == {
        type(m)(z, *_rest(m)) for (m, _), z in zip(charged, noises[::3], strict=True)
    }
    for (m, _), (other, _) in zip(charged, happened(), strict=False):
        assert _rest(m) == _rest(other) and type(m) is type(other)

    assert epsilon_of(happened(), 1e-5, "rdp") <= 1.5
    assert (
        epsilon_of(charged, 1e-5, "rdp")
        <= 1.5
        < epsilon_of([*charged, *step.schedule()(draws + 1)], 1e-5, "rdp")
    )
    # No fewer draws than 1 % less noise in all of them would pay for.
    assert epsilon_of(happened(0.985), 1e-5, "rdp") > 1.5 * 0.97
    claims = step.budget.ledger.claims()
    assert len(claims) == 1
    assert step.budget.spent() == pytest.approx(epsilon_of(charged, 1e-5, "rdp"), rel=1e-6)
    if sampling is None:
        assert {n for _, n in accesses} == {None}
    elif sampling is Sampling.WITHOUT_REPLACEMENT:
        assert {n for _, n in accesses} == {6}
    else:
        assert len({n for _, n in accesses}) > 5


def _rest(mechanism):
    if isinstance(mechanism, Gaussian):
        return ()
    return mechanism.sampling_probability, mechanism.sampling, mechanism.adjacency


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_charged_is_what_happened(kind, monkeypatch):
    check_charges(kind, monkeypatch)


class ChargesOneSide(DPSGHMC):
    """The noise multiplier of adding a record, for replacing one."""

    @property
    def sensitivity_factor(self):
        return 1.0


class ChargesFewerGradients(DPSGHMC):
    def schedule(self):
        return lambda t, right=super().schedule(): tuple((m, k - 1) for m, k in right(t))


class ChargesTheFirstDraw(DPSGHMC):
    """Later draws, with their shorter steps, would cost less; longer ones more."""

    def schedule(self):
        return lambda t, right=super().schedule(): right(1)


class ChargesRoundedUp(DPSGHMC):
    def schedule(self):
        def too_much(t, right=super().schedule()):
            ((m, k),) = right(t)
            return ((SampledGaussian(m.noise_multiplier * 1.01, *_rest(m)), k),)

        return too_much


class DrawsFixedBatches(DPSGHMC):
    """Batches without replacement, charged as Poisson (erratum E11)."""

    def _batch(self):
        return sghmc.without_replacement(N, 6, self._bits)


class LooksAgain(DPSGHMC):
    def _step(self, phase, step_size, noise_sd):
        self._gradient(phase.theta, noise_sd, self._bits, index=self._batch(), part=0.1)
        return super()._step(phase, step_size, noise_sd)


class LooksAtTheLikelihood(DPSGHMC):
    def _step(self, phase, step_size, noise_sd):
        self.likelihood.logp(phase.theta)
        return super()._step(phase, step_size, noise_sd)


@pytest.mark.parametrize(
    "fault",
    [*(pytest.param(f, marks=pytest.mark.slow) for f in (ChargesOneSide, ChargesFewerGradients)), ChargesTheFirstDraw, ChargesRoundedUp, LooksAgain, LooksAtTheLikelihood],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_wrong_charge_is_found(fault, monkeypatch):
    with pytest.raises(AssertionError):
        check_charges("fixed, substitute", monkeypatch, fault)


def test_batches_that_are_not_those_charged_for_are_found(monkeypatch):
    with pytest.raises(AssertionError):
        check_charges("Poisson, add or remove", monkeypatch, DrawsFixedBatches)


# ---------------------------------------------------------------- Table 6.3

PUBLISHED = {1e-6: 0.881, 1e-5: 0.763, 1e-4: 0.629, 1e-3: 0.473, 1e-2: 0.273}


def of_the_thesis(budget):
    """C = 1, L = 0.7, q = 0.01, beta = 3, J = 10; its noise multiplier is ours at temperature q."""
    return make(
        MEAN, budget=budget, step_size=3.0, friction=1.0, gradient_clip_bound=0.7, sampling_probability=0.01,
        temperature=0.01, n_steps=10, reproducible=False,
    )  # fmt: skip


def test_epsilon_of_the_thesis():
    budget = PrivacyBudget(math.inf, 1e-5, chains=1, adjacency="add_remove")
    step = of_the_thesis(budget)
    for t in (1, 7, 200):
        assert step.noise_multiplier(t) == pytest.approx(math.sqrt(2 / (0.49 * 3 * t ** (-1 / 3))))
    run = [access for t in range(1, 201) for access in step.schedule()(t)]
    assert sum(k for _, k in run) == 2000
    for delta, published in PUBLISHED.items():
        assert published * 0.995 < epsilon_of(run, delta, "pld") < published * 1.015


@pytest.mark.slow
def test_large_batches_cost_no_privacy():
    """With the step's noise multiplier, proportional to q, the cost depends on q only where the multiplier is small."""
    budget = PrivacyBudget(math.inf, 1e-5, chains=1, adjacency="add_remove")
    found = {}
    for part in (0.01, 0.05, 1.0):
        step = make(
            MEAN, budget=budget, step_size=constant(0.01), friction=50.0, gradient_clip_bound=1.0, sampling_probability=part,
        )  # fmt: skip
        z = step.noise_multiplier(1)
        assert z == pytest.approx(100 * part)
        release_ = SampledGaussian(z, part, "poisson", "add_remove")
        found[part] = epsilon_of([(release_, 3000)], 1e-5)
    assert found == pytest.approx({0.01: 3.19, 0.05: 2.25, 1.0: 2.21}, abs=0.01)


# ---------------------------------------------------------------- clipping


@functools.cache
def with_last(value):
    """A likelihood of the regression, with another value for the last record."""
    with pm.Model() as model:
        beta, y = pm.Normal("beta", 0, 1, shape=2), np.append(Y[:-1], value)
        pm.Normal("y", W @ beta, REGRESSION_SD, observed=y)
    return RecordLikelihood(model)


@pytest.mark.slow
def test_a_record_moves_the_sum_by_no_more_than_its_bound():
    """Replaced, it moves the sum by 2 b, removed by b, at the most; outliers do so nearly."""
    bound, outliers = 0.5, [1e6, -1e6, 3.0, math.inf]
    coordinates = gradients.Coordinates(DENSE, np.arange(2), 2)
    thetas = np.random.default_rng(5).normal(size=(20, 2))

    def sums(value):
        likelihood = with_last(value)
        return np.array([
            [likelihood.clipped_grad(t, bound, index, directions=coordinates.directions) for index in (None, np.arange(N - 1))]
            for t in thetas
        ])  # fmt: skip

    all_of, others = zip(*[np.moveaxis(sums(out), 1, 0) for out in outliers], strict=True)
    for one, two in itertools.pairwise(others):
        assert np.array_equal(one, two)
    added = [np.linalg.norm(a - o, axis=1) for a, o in zip(all_of, others, strict=True)]
    assert np.max(added) <= bound * (1 + 1e-8)
    assert np.max(added) > bound * (1 - 1e-6)
    replaced = [np.linalg.norm(a - b, axis=1).max() for a, b in itertools.combinations(all_of, 2)]
    assert 2 * bound * (1 - 1e-6) < max(replaced) <= 2 * bound * (1 + 1e-8)


def test_clipping_the_batch_lets_one_record_turn_it():
    """Erratum E9: the norm of what is released is bounded by L, but adding one record moves it by up to 2 L."""
    bound = 0.5
    rng = np.random.default_rng(6)
    moved = {"records": 0.0, "batch": 0.0}
    for _ in range(200):
        others = rng.normal(size=(10, 2)) + rng.normal(size=2)
        one = -1e3 * others.sum(axis=0)

        def clip(g):
            return g * np.minimum(1, bound / np.linalg.norm(g, axis=-1, keepdims=True))

        by_batch = clip((others.sum(axis=0) + one)[None])[0] - clip(others.sum(axis=0)[None])[0]
        by_record = clip(np.vstack([others, one])).sum(axis=0) - clip(others).sum(axis=0)
        moved["batch"] = max(moved["batch"], np.linalg.norm(by_batch))
        moved["records"] = max(moved["records"], np.linalg.norm(by_record))
    assert moved["records"] <= bound * (1 + 1e-12)
    assert moved["batch"] > 1.99 * bound
