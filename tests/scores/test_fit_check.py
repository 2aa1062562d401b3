"""Fit check: sensitivity and scale of the counts, false alarms where the model is right, power where it is not."""

import math

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest

from pymc_dp import codec
from pymc_dp.model.sums.clipped_vectors import clip_rows
from pymc_dp.model.sums.vector_sums import norm_bins
from pymc_dp.model.terms import ScoreNorms, Source
from pymc_dp.planning.local_information import MODEL_MISFIT_FRACTION
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Gaussian
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.queries.noisy_total import noisy_total
from pymc_dp.scores.check_design import CheckDesign, edges_of
from pymc_dp.scores.design import best_design
from pymc_dp.scores.fit_check import _tested, check_fit
from pymc_dp.scores.private_scores import plan_scores
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.simulated_scores import SimulatedScores
from pymc_dp.scores.sum_law import normal_sums
from tests.terms import score_release

N_ROWS = 3000


class Vectors(NamedTuple):
    """A block of records, in place of the compiled one."""

    gradients: np.ndarray

    def vectors(self, theta, directions):
        with np.errstate(invalid="ignore"):
            yield self.gradients @ directions, None


class Rows(Source):
    """Gradients of records, in place of a likelihood."""

    def __init__(self, gradients):
        self._block = Vectors(gradients)

    def map(self, term, index=None):
        yield term.of(self._block)


@pytest.fixture(scope="module")
def normal():
    with pm.Model() as model:
        mu, log_sigma = pm.Normal("mu", 0, 2), pm.Normal("log_sigma", 0, 2)
        pm.Normal("y", mu, pm.math.exp(log_sigma), observed=np.random.default_rng(0).normal(size=N_ROWS))  # fmt: skip
    return Simulator(model)


@pytest.fixture(scope="module")
def poisson():
    with pm.Model() as model:
        log_rate = pm.Normal("log_rate", 0, 2)
        pm.Poisson("y", pm.math.exp(log_rate), observed=np.zeros(N_ROWS, dtype=int))
    return Simulator(model)


def budget_of(epsilon, delta=1e-6, adjacency="substitute"):
    return PrivacyBudget(epsilon=epsilon, delta=delta, chains=1, adjacency=adjacency)


@lru_cache
def planned(simulator, n, epsilon):
    theta = np.zeros(simulator.likelihood.n_dim)
    simulated = SimulatedScores(simulator, theta, np.random.default_rng(0))
    return best_design(simulated, budget_of(epsilon), n, "auto", 0.03)


def release_histogram(rows, simulated, check):
    """As a plan does."""
    edges = edges_of(simulated.norms, check.levels)
    term = ScoreNorms(simulated.theta, simulated.directions, edges)
    return noisy_total(rows, term, check.mechanism, Adjacency.SUBSTITUTE)


def released(simulator, theta, y, epsilon, rng):
    """Scores at `theta` of records `y`, which are no secret, as private_scores() would release them."""
    n = len(y)
    simulated = SimulatedScores(simulator, np.asarray(theta, dtype=float), rng)
    design = planned(simulator, n, epsilon)
    blocks = [
        simulator.simulated.gradients(simulated.theta, [block]) for block in y.reshape(-1, N_ROWS)
    ]
    gradients, factor = np.vstack(blocks), 2.0
    histogram = release_histogram(Rows(gradients), simulated, design.check)
    bound = simulated.design(factor * design.main.noise_sd).bound
    sd = factor * bound * design.main.noise_sd
    total = clip_rows(gradients @ simulated.directions, bound).sum(axis=0)
    total += sd * rng.standard_normal(len(total))  # close to the law of l2 noise
    release = score_release(simulated.theta, simulated.directions, bound, "gaussian", sd, total)
    shapes = dict.fromkeys(simulator.likelihood.unravel(simulated.theta), ())
    return PrivateScores((release,), shapes, n, "substitute", (), histogram=histogram)


# Sensitivity and noise


def check_sensitivity():
    """Compare the largest change by neighbours with the sensitivity that noise is scaled by."""
    rng = np.random.default_rng(1)
    directions, edges = rng.normal(size=(3, 2)), np.array([0.5, 1.0, 1.0, 2.0])
    changes = {"add_remove": 0.0, "substitute": 0.0}
    term = ScoreNorms(np.zeros(3), directions, edges)
    for _ in range(200):
        rows = rng.normal(size=(20, 3))
        other = rows.copy()
        other[rng.integers(20)] = rng.choice([0.1, 1, 100, np.nan, np.inf]) * rng.normal(size=3)
        for adjacency, neighbour in (("add_remove", rows[1:]), ("substitute", other)):
            counts = [Rows(r).total(term) for r in (rows, neighbour)]
            assert all(c.dtype == np.int64 and c.sum() in (19, 20) for c in counts)
            changes[adjacency] = max(changes[adjacency], np.linalg.norm(counts[0] - counts[1]))
    for adjacency, change in changes.items():
        assert change == pytest.approx(term.sensitivity(adjacency), rel=1e-12)
        for mechanism in (Gaussian(3.0), L2Laplace(0.5, 5)):
            law, per_sensitivity = (
                ("gaussian", 3.0) if isinstance(mechanism, Gaussian) else ("l2", 2.0)
            )
            wanted = law, pytest.approx(change * per_sensitivity)
            found = NoiseLaw.of(mechanism, term.sensitivity(adjacency), 5)
            assert (found.kind, found.scale) == wanted


def test_neighbours_change_counts_by_the_sensitivity():
    check_sensitivity()


def test_a_wrong_sensitivity_is_found(monkeypatch):
    monkeypatch.setattr(ScoreNorms, "sensitivity", lambda self, adjacency: 1.0)
    with pytest.raises(AssertionError):
        check_sensitivity()


def test_a_bin_depends_on_its_record_alone():
    rng = np.random.default_rng(2)
    rows, directions = rng.normal(size=(500, 7)), rng.normal(size=(7, 5))
    norms = np.linalg.norm(rows @ directions, axis=1)
    rows[3], rows[4] = np.nan, np.inf
    edges = edges_of(norms[5:], (0.2, 0.5, 0.9))
    with np.errstate(invalid="ignore"):
        vectors = rows @ directions
    places = norm_bins(vectors, edges)
    counts = Rows(rows).total(ScoreNorms(np.zeros(7), directions, edges))
    assert (places[3:5] == 3).all()
    assert np.array_equal(places[5:], np.searchsorted(edges, norms[5:], side="right"))
    single = [norm_bins(row[None], edges)[0] for row in vectors]
    assert np.array_equal(places, single)
    assert np.array_equal(counts, np.bincount(places, minlength=4))


def test_edges_lie_between_equal_values():
    values = np.repeat([0.0, 1.0, 1.0 + 1e-12, 3.0], 25)
    edges = edges_of(values, (0.1, 0.5, 0.6, 0.9))
    assert edges == pytest.approx([0.5, 2.0, 2.0, 3.6])


@pytest.mark.parametrize("mechanism", [Gaussian(20.0), L2Laplace(0.1, 4)], ids=lambda m: m.name)
def test_noise_has_the_claimed_scale(normal, mechanism):
    rng = np.random.default_rng(3)
    simulated = SimulatedScores(normal, np.zeros(2), rng)
    rows, design = Rows(rng.normal(size=(300, 2))), CheckDesign(mechanism, (0.5, 0.9, 0.99))
    found = [release_histogram(rows, simulated, design) for _ in range(300)]
    exact = rows.total(found[0].term)
    errors = np.array([h.total for h in found]) - exact
    claimed = math.sqrt(2) * mechanism.noise_sd
    assert found[0].noise_sd == pytest.approx(claimed)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(claimed, rel=0.12)
    drawn = found[0].noise.draw(4000, rng)
    assert np.sqrt(np.mean(drawn**2)) == pytest.approx(claimed, rel=0.05)


# Plan, budget and file


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (4.0, 0.0)])
def test_the_budget_pays_for_the_scale_that_is_released(normal, epsilon, delta, tmp_path):
    budget = budget_of(epsilon, delta)
    plan = plan_scores(normal, budget, random_seed=1)
    assert Cost.of(plan.design.accesses).epsilon(delta, budget.accountant) <= epsilon
    scores = plan.release()
    ((mechanism, count),) = budget.one_off_accesses["fit check"]
    histogram = scores.histogram
    assert count == 1
    assert histogram.noise_sd == pytest.approx(math.sqrt(2) * mechanism.noise_sd)
    assert histogram.noise.kind == ("l2" if isinstance(mechanism, L2Laplace) else "gaussian")
    assert abs(histogram.total.sum() - N_ROWS) < 6 * histogram.noise_sd * math.sqrt(len(histogram.total))  # fmt: skip
    assert "fit check" in str(plan)
    scores.save(tmp_path / "scores.json")
    loaded = PrivateScores.load(tmp_path / "scores.json")
    assert codec.dumps(loaded) == codec.dumps(scores)
    assert isinstance(loaded.histogram.term, ScoreNorms)
    first, second = (check_fit(s, normal, random_seed=2) for s in (scores, loaded))
    assert first.p_value == second.p_value
    assert first.expected.sum() == pytest.approx(N_ROWS)
    # What an unseen misfit could do is known before but for the simulations and a start: 0.4 to 7 % were seen.
    for name, shift in plan.unseen_shifts.items():
        assert first.unseen_shifts[name] == pytest.approx(shift, rel=0.15)


def test_the_check_costs_a_small_part_and_can_be_left_out(normal):
    with_check, without = (
        plan_scores(normal, budget_of(1.0), fit_share=share, random_seed=1) for share in (0.03, 0)
    )
    assert without.design.check is None
    ratio = with_check.design.main.noise_sd / without.design.main.noise_sd
    assert 1 < ratio < 1.04
    scores = without.release()
    assert scores.histogram is None
    assert check_fit(scores, normal) is None
    with pytest.raises(ValueError, match="fit_share"):
        plan_scores(normal, budget_of(1.0), fit_share=1.0)


def test_few_records_have_fewer_bins(normal):
    simulated = SimulatedScores(normal, np.zeros(2), np.random.default_rng(4))
    few, many = (
        best_design(simulated, budget_of(1.0, 0.0), n, "auto", 0.03).check.levels
        for n in (300, 1_000_000)
    )
    assert len(few) < len(many)


# False alarms and power


def p_values(simulator, theta, draw, n, epsilon, n_replicates):
    """Of data sets drawn by `draw`; the reference is two standard deviations off."""
    found = []
    for seed in range(n_replicates):
        rng = np.random.default_rng([seed, n])
        reference = np.asarray(theta) + 2 / math.sqrt(n)
        scores = released(simulator, reference, draw(rng, n), epsilon, rng)
        found.append(check_fit(scores, simulator, random_seed=seed))
    return found


def normal_draw(rng, n):
    return rng.normal(size=n)


def outliers(rng, n):
    return np.where(rng.random(n) < 0.01, 10.0, 1.0) * rng.normal(size=n)


def test_the_right_model_fits(normal):
    found = p_values(normal, [0.0, 0.0], normal_draw, N_ROWS, 4.0, 3)
    assert sum(check.is_rejected for check in found) == 0
    assert "like the model's" in str(found[0])


@pytest.mark.slow
def test_false_alarms_are_rare(normal):
    found = p_values(normal, [0.0, 0.0], normal_draw, N_ROWS, 4.0, 200)
    assert np.mean([check.is_rejected for check in found]) <= 0.02
    # Not more conservative than needed.
    assert np.mean([check.p_value < 0.5 for check in found]) > 0.3


MISFITS = {
    "t(4)": (lambda rng, n: rng.standard_t(4, n), "heavier tails"),
    "outliers": (outliers, "heavier tails"),
    "gamma": (lambda rng, n: rng.gamma(2.0, 1.0, n) - 2, "heavier tails"),
    "uniform": (lambda rng, n: rng.uniform(-1.7, 1.7, n), "lighter tails"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfit_is_rejected_and_named(normal, name):
    draw, words = MISFITS[name]
    spread = float(np.log(np.std(draw(np.random.default_rng(0), 30_000))))
    (check,) = p_values(normal, [0.0, spread], draw, 30_000, 4.0, 1)
    assert check.is_rejected
    assert words in check.message


def contaminated(share, size=60.0):
    return lambda rng, n: np.where(rng.random(n) < share, size, rng.normal(size=n))


@pytest.mark.slow
def test_the_share_that_may_go_unseen_is_seen_with_probability_80_per_cent(normal):
    (right,) = p_values(normal, [0.0, 0.0], normal_draw, N_ROWS, 4.0, 1)
    planned_share = planned(normal, N_ROWS, 4.0).check.unseen
    assert 0.01 < right.unseen < 0.1
    assert planned_share == pytest.approx(right.unseen, rel=0.2)
    shares = {factor: factor * right.unseen for factor in (0.5, 1.0)}
    found = {
        factor: np.mean(
            [
                c.is_rejected
                for c in p_values(normal, [0.0, 0.0], contaminated(share), N_ROWS, 4.0, 40)
            ]
        )
        for factor, share in shares.items()
    }
    # The second statistic sees more; records far out move the reference's posterior, which hides some.
    assert found[0.5] < found[1.0]
    assert 0.6 < found[1.0]
    assert found[0.5] < 0.8


def test_the_shift_by_an_unseen_misfit_covers_what_comes_out(normal):
    """As many records as may go unseen, all far out in one direction: the sum moves by their number times the bound."""
    (right,) = p_values(normal, [0.0, 0.0], normal_draw, N_ROWS, 4.0, 1)
    share = right.unseen
    rng = np.random.default_rng([0, N_ROWS])
    y = normal_draw(rng, N_ROWS)
    shifted = np.where(np.arange(N_ROWS) < share * N_ROWS, 60.0, y)
    reference = np.zeros(2) + 2 / math.sqrt(N_ROWS)
    means, sds = [], []
    for data in (y, shifted):
        scores = released(normal, reference, data, 4.0, np.random.default_rng(1))
        found = normal_sums(normal, scores, np.random.default_rng(2)).approximation
        means.append(found.mean)
        sds.append(np.sqrt(np.diag(found.covariance)))
    moved = np.abs(means[1] - means[0]) / sds[0]
    allowed = np.array([right.unseen_shifts[name][()] for name in ("mu", "log_sigma")])
    assert (moved < 1.2 * allowed).all()
    assert moved.max() > 0.5 * allowed.max()
    assert "could move" in str(right)


@pytest.mark.slow
def test_overdispersed_counts_are_rejected(poisson):
    def draw(rng, n):
        return rng.poisson(3 * rng.gamma(5, 1 / 5, n))

    (right,) = p_values(poisson, [math.log(3)], lambda rng, n: rng.poisson(3, n), 30_000, 4.0, 1)
    (wrong,) = p_values(poisson, [math.log(3)], draw, 30_000, 4.0, 1)
    assert not right.is_rejected
    assert wrong.is_rejected
    assert "NegativeBinomial" in wrong.message


def test_a_guessed_number_of_records_is_no_misfit(normal):
    rng = np.random.default_rng(5)
    scores = released(normal, [0.0, 0.0], rng.normal(size=30_000), 4.0, rng)
    draws = rng.normal(scale=1 / math.sqrt(30_000), size=(500, 2))
    guessed = {
        adjacency: check_fit(
            replace(scores, n_records=25_000, adjacency=adjacency), normal, draws=draws
        )
        for adjacency in ("substitute", "add_remove")
    }
    assert guessed["substitute"].is_rejected
    assert not guessed["add_remove"].is_rejected


# The clip bound


def known_misfit(simulator, draw, n, epsilon=4.0, off=0.0, reference_error=1e-4, seed=0):
    """What the histogram of such records at a reference `off` says; the simulated scores there."""
    rng = np.random.default_rng([seed, n])
    reference = np.array([off, 0.0])
    histogram = released(simulator, reference, draw(rng, n), epsilon, rng).histogram
    simulated = SimulatedScores(simulator, reference, rng)
    return simulated.misfit(histogram, reference_error), simulated


@pytest.mark.slow
def test_a_right_model_does_not_change_the_bound(normal):
    bounds = np.linspace(0.1, 5, 50)
    misfits = [known_misfit(normal, normal_draw, N_ROWS, seed=seed)[0] for seed in range(15)]
    parts = [misfit.beyond(b) for misfit in misfits for b in bounds]
    assert np.mean(np.array(parts) == MODEL_MISFIT_FRACTION) > 0.98


def test_a_distance_from_the_reference_is_no_misfit(normal):
    """Scores at another mean have other norms; this is misfit only if the distance is thought to be small."""
    far, near = (
        known_misfit(normal, normal_draw, 30_000, off=0.5, reference_error=error)[0].beyond(3.0)
        for error in (0.25, 1e-4)
    )
    assert far == MODEL_MISFIT_FRACTION < near


@pytest.mark.parametrize("last", [0.0, 1.0])
def test_a_bin_that_is_always_empty_in_simulations(last):
    """With next to no noise: empty in the data, too, it says nothing; one record there is a misfit."""
    errors = np.column_stack([np.random.default_rng(1).normal(size=(4001, 3)), np.zeros(4001)])
    errors[0] = *(0.5, 0.5, 0.5), last
    p_value = _tested(errors)[1]
    assert p_value < 1e-3 if last else p_value > 0.2


def test_little_budget_tells_nothing(normal):
    misfit, _ = known_misfit(normal, MISFITS["outliers"][0], N_ROWS, epsilon=0.1)
    assert all(misfit.beyond(b) == MODEL_MISFIT_FRACTION for b in np.linspace(0.1, 9, 50))


def test_a_misfit_is_measured(normal):
    """The part beyond an edge is that of the data over that of the model, less three standard deviations."""
    misfit, simulated = known_misfit(normal, outliers, 300_000, epsilon=100.0)
    bound = float(misfit.edges[-1])
    errors = outliers(np.random.default_rng(3), 1_000_000)
    norms = np.hypot(errors, (errors**2 - 1) / np.sqrt(2))
    found, expected = np.mean(norms > bound), np.mean(simulated.norms > bound)
    assert misfit.beyond(bound) == pytest.approx(found / expected - 1, rel=0.1)
