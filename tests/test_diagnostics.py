"""Diagnostics: the discrepancy against closed forms, plots by the data in their artists."""

import math
import os
import sys

import arviz as az
import numpy as np
import pytest

from numpy.testing import assert_allclose

from pymc_dp import diagnostics
from pymc_dp.acceptance import Barker, Penalty
from pymc_dp.diagnostics import mmd, plot_epsilon, plot_posterior
from pymc_dp.privacy import Decision, Gaussian, epsilon_of
from pymc_dp.privacy.allowance import StepAccess
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import DecisionFamily

SEED = int(os.environ.get("DIAGNOSTICS_SEED", "0"))


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def result(group="posterior", **arrays):
    """A container of the ArviZ that is installed; arrays (chains, draws, *shape)."""
    if int(az.__version__.split(".")[0]) >= 1:
        return az.from_dict({group: arrays}, dims={"beta": ["predictor"]})
    return az.from_dict(**{group: arrays}, dims={"beta": ["predictor"]})


def mmd_of_gaussians(shift, scales, bandwidth):
    """MMD of N(0, scales[0]**2 I) and N(shift, scales[1]**2 I): kernels integrate to Gaussians."""

    def mean_kernel(variance, shift):
        total = bandwidth**2 + variance
        return (bandwidth**2 / total) ** (len(shift) / 2) * math.exp(-(shift @ shift) / (2 * total))

    first, second = (s**2 for s in scales)
    within = mean_kernel(2 * first, 0 * shift) + mean_kernel(2 * second, 0 * shift)
    return math.sqrt(within - 2 * mean_kernel(first + second, shift))


class TestMMD:
    @pytest.mark.parametrize("shift", [[0.5], [1.0, -0.5], [0.3] * 10])
    @pytest.mark.parametrize("scales", [(1.0, 1.0), (1.0, 1.7)])
    @pytest.mark.parametrize("bandwidth", [0.8, 3.0])
    def test_gaussians(self, rng, shift, scales, bandwidth):
        shift = np.array(shift)
        found = [
            mmd(
                rng.normal(0, scales[0], (400, len(shift))),
                rng.normal(shift, scales[1], (600, len(shift))),
                bandwidth=bandwidth,
            )
            ** 2
            for _ in range(40)
        ]
        error = np.std(found, ddof=1) / math.sqrt(len(found))
        expected = mmd_of_gaussians(shift, scales, bandwidth) ** 2
        assert abs(np.mean(found) - expected) < 5 * error
        # Negative control: kernels without the 2, where that makes a difference.
        if bandwidth == 3 and scales[0] == scales[1]:
            other = mmd_of_gaussians(shift, scales, bandwidth / math.sqrt(2)) ** 2
            assert abs(np.mean(found) - other) > 5 * error

    def test_definition(self, rng):
        """Against loops; the diagonal does not count."""
        x, y, s = rng.normal(size=(7, 3)), rng.normal(1, 2, size=(5, 3)), 1.3

        def k(a, b):
            return math.exp(-sum((a - b) ** 2) / (2 * s**2))

        total = sum(k(x[i], x[j]) for i in range(7) for j in range(7) if i != j) / 42
        total += sum(k(y[i], y[j]) for i in range(5) for j in range(5) if i != j) / 20
        total -= 2 * sum(k(a, b) for a in x for b in y) / 35
        assert mmd(x, y, bandwidth=s) == pytest.approx(math.sqrt(abs(total)), rel=1e-12)

    def test_range(self, rng):
        """Of the same law near 0; of laws far apart sqrt(2 - 2 exp(-1/2)), if the bandwidth is their distance."""
        x, y = rng.normal(size=(2, 1000, 2))
        assert mmd(x, y) < 0.06
        far = mmd(x + 1e4, y)
        assert far == pytest.approx(math.sqrt(2 - 2 * math.exp(-0.5)), rel=1e-3)
        # Published medians lie between; 0.8453 is the largest whisker: a square could not reach it.
        assert far**2 < 0.8453 < far
        # Not biased: the estimate that counts the diagonal would be at least this large.
        near = [mmd(*rng.normal(size=(2, 100, 2)), bandwidth=1.0) for _ in range(20)]
        assert np.median(near) < math.sqrt(2 / 100 * (1 - 1 / 3))

    def test_default_bandwidth(self, rng):
        x, y = rng.normal(size=(3000, 2)), rng.normal(size=(3000, 2))
        median = math.sqrt(4 * math.log(2))  # of the distance of two standard normal points
        assert mmd(x + 3, y, bandwidth=None) == mmd(x + 3, y)
        found = [mmd(x, y + 1, random_seed=k) for k in range(5)]
        assert len(set(found)) == 5
        pairs = rng.normal(size=(100_000, 2)) - rng.normal(1, 1, size=(100_000, 2))
        exact = mmd(x, y + 1, bandwidth=float(np.median(np.linalg.norm(pairs, axis=1))))
        assert_allclose(found, exact, rtol=0.1)
        assert abs(exact / mmd(x, y + 1, bandwidth=median / 10) - 1) > 0.1

    def test_invariance(self, rng):
        x, y = rng.normal(size=(300, 4)), rng.normal(0.5, size=(200, 4))
        expected = mmd(x, y, bandwidth=2.0)
        for again in (
            mmd(y, x, bandwidth=2.0),
            mmd(rng.permutation(x), rng.permutation(y), bandwidth=2.0),
            mmd(x + 100, y + 100, bandwidth=2.0),
            mmd(x[:, ::-1], y[:, ::-1], bandwidth=2.0),
            mmd(10 * x, 10 * y, bandwidth=20.0),
            mmd(x.reshape(3, 100, 4), y.tolist(), bandwidth=2.0),
        ):
            assert again == pytest.approx(expected, rel=1e-9)
        assert mmd(x + 100, y + 100) == pytest.approx(mmd(x, y), rel=1e-9)
        assert abs(mmd(x + 2, y, bandwidth=2.0) - expected) > 0.1

    @pytest.mark.parametrize("block", [1, 150, 10_007])
    def test_blocks(self, rng, monkeypatch, block):
        x, y = rng.normal(size=(301, 2)), rng.normal(0.5, size=(199, 2))
        expected = mmd(x, y)
        monkeypatch.setattr(diagnostics, "_BLOCK", block)
        assert mmd(x, y) == pytest.approx(expected, rel=1e-10)

    def test_containers(self, rng):
        beta, mu = rng.normal(size=(2, 150, 3)), rng.normal(size=(2, 150))
        other = {"mu": rng.normal(1, 1, (1, 200)), "beta": rng.normal(size=(1, 200, 3))}
        columns = [np.dstack([b, m]) for b, m in ((beta, mu), (other["beta"], other["mu"]))]
        expected = mmd(*columns)
        own = result(beta=beta, mu=mu, alone=mu)
        group = own["posterior"]
        dataset = group.to_dataset() if hasattr(group, "to_dataset") else group
        for draws in (own, group, dataset, {"beta": beta, "mu": mu}):
            for reference in (other, result(**other)):
                assert mmd(draws, reference) == pytest.approx(expected, rel=1e-12)

    def test_errors(self, rng):
        x = rng.normal(size=(10, 2))
        bad = x.copy()
        bad[3, 1] = np.nan
        for draws, reference, message in (
            (x, x[:, :1], "shape of a draw"),
            (bad, x, "finite"),
            (x, bad, "finite"),
            (x[:1], x, "At least 2 draws"),
            (x[:, 0], x, "Shape"),
            (np.ones((5, 2)), np.ones((5, 2)), "bandwidth"),
            (result(mu=x.T), result(tau=x.T), "No variable in common"),
            (result(mu=x.T), {"mu": np.ones((2, 10, 3))}, "shape of a draw"),
            (result("prior", mu=x.T), result(mu=x.T), "posterior"),
        ):
            with pytest.raises(ValueError, match=message):
                mmd(draws, reference)
        with pytest.raises(ValueError, match="bandwidth"):
            mmd(x, x, bandwidth=-1.0)


def access(mechanisms, label="A[x]", variables=("x",), **kwargs):
    return StepAccess(label, variables, mechanisms, 1, ("x", "y"), 1000, True, **kwargs)


class TestPlotEpsilon:
    MECHANISMS = ((Gaussian(30.0), 2), (Decision(Barker(), 0.05), 1))

    @pytest.mark.parametrize("chains", [1, 4])
    def test_lines(self, plt, chains):
        names = ("best", "rdp", "moments")
        ax = plot_epsilon(self.MECHANISMS, delta=1e-6, chains=chains, draws=500, accountants=names)
        assert [line.get_label() for line in ax.get_lines()] == [*names]
        for line in ax.get_lines():
            counts, epsilons = line.get_data()
            assert (counts[0], counts[-1]) == (1, 500)
            for k in (0, 7, len(counts) - 1):
                run = [(m, n * counts[k] * chains) for m, n in self.MECHANISMS]
                expected = epsilon_of(run, 1e-6, line.get_label())
                assert epsilons[k] == pytest.approx(expected, rel=1e-12)
        assert ax.get_xlabel() == "draws per chain"
        assert "ε at δ = 1e-06" in ax.get_ylabel()

    def test_default_number_of_draws(self, plt):
        (line,) = plot_epsilon(self.MECHANISMS, delta=1e-6, accountants=["rdp"]).get_lines()
        assert line.get_ydata()[-1] == pytest.approx(10, rel=0.01)
        assert line.get_ydata()[-1] <= 10

    def test_step(self, plt):
        class Step:
            budget = PrivacyBudget(1.0, 1e-5, chains=3)

            def mechanisms(self):
                return ((Gaussian(100.0), 1),)

            def starting(self):
                return ((Gaussian(10.0), 1),)

            def schedule(self):
                return lambda t: ((Gaussian(100.0 + t), 1),)

        ax = plot_epsilon(Step(), draws=20)
        counts, epsilons = ax.get_lines()[0].get_data()
        run = [(Gaussian(10.0), 3), *((Gaussian(100.0 + t), 3) for t in range(1, 8))]
        assert epsilons[list(counts).index(7)] == pytest.approx(epsilon_of(run, 1e-5))
        assert ax.get_lines()[1].get_ydata()[0] == 1.0

    def test_budget(self, plt):
        """All steps together meet the budget where its plan ends."""
        budget = PrivacyBudget(2.0, 1e-6, chains=2)
        budget.register(access(self.MECHANISMS))
        budget.register(access(((Gaussian(50.0), 1),), "B[y]", ("y",)))
        expected = int(budget.expected_draws())
        ax = plot_epsilon(budget, draws=expected)
        assert ax.get_lines()[0].get_ydata()[-1] == pytest.approx(2.0, rel=0.02)
        assert ax.get_lines()[0].get_ydata()[-1] <= 2.0
        assert ax.get_lines()[1].get_label() == "budget"
        longer = plot_epsilon(budget, ax=plt.subplots()[1]).get_lines()[0].get_ydata()
        assert longer[-1] > 2.0

    @pytest.mark.parametrize("scale", [0.01, 0.03])
    def test_costs_that_vary(self, plt, rng, scale):
        distances = tuple(rng.rayleigh(scale, size=1000).tolist())
        budget = PrivacyBudget(2.0, 1e-6, chains=2)
        family = DecisionFamily(2.0, Penalty(1.4), None, 1.0, distances)
        budget.register(access(((family, 1),)))
        expected = int(budget.expected_draws())
        ax = plot_epsilon(budget, draws=expected)
        assert ax.get_lines()[0].get_ydata()[-1] == pytest.approx(2.0, rel=0.02)
        assert ax.get_ylabel().startswith("expected ε")

    def test_errors(self, plt):
        distances = (0.1, 0.2)
        family = DecisionFamily(2.0, Penalty(1.4), None, 1.0, distances)
        for mechanisms, options, message in (
            (self.MECHANISMS, {}, "delta"),
            ([], {"delta": 1e-6}, "access"),
            (PrivacyBudget(1.0, 1e-6, chains=2), {}, "step on the budget"),
            (self.MECHANISMS, {"delta": 1e-6, "draws": 0}, "at least 1"),
            (self.MECHANISMS, {"delta": 1e-6, "chains": 0}, "at least 1"),
            (self.MECHANISMS, {"delta": 2.0, "draws": 9}, "delta must lie"),
            (self.MECHANISMS, {"delta": 1e-6, "accountants": ["x"]}, "Unknown accountant"),
            ([(family, 1)], {"delta": 1e-6, "accountants": ["zcdp"]}, "No finite bound"),
        ):
            with pytest.raises(ValueError, match=message):
                plot_epsilon(mechanisms, **options)
        assert not plt.get_fignums()


def walk(rng, chains, draws, *shape):
    """Autocorrelated draws of a standard normal law, a quarter of them repeated."""
    x = rng.normal(size=(chains, draws, *shape))
    for t in range(1, draws):
        x[:, t] = x[:, t - 1] if t % 4 == 0 else 0.8 * x[:, t - 1] + 0.6 * x[:, t]
    return x


class TestPlotPosterior:
    def lines(self, ax):
        return {line.get_color(): line for line in ax.get_lines()}

    def test_what_is_drawn(self, plt, rng):
        posterior = result(beta=walk(rng, 4, 300, 2), mu=walk(rng, 4, 300))
        posterior["posterior"].attrs["epsilon"] = 1.5
        prior = result("prior", beta=rng.normal(0, 3, (1, 500, 2)), other=np.ones((1, 500)))
        reference = {"mu": rng.normal(size=(2, 400))}
        axes = plot_posterior(posterior, prior, reference=reference, n_columns=2)
        assert [ax.get_xlabel() for ax in axes] == ["beta[0]", "beta[1]", "mu"]
        assert [sorted(self.lines(ax)) for ax in axes] == [["0.6", "C0"]] * 2 + [["C0", "black"]]
        assert len(axes[0].figure.axes) == 3
        (legend,) = axes[0].figure.legends
        labels = {text.get_text() for text in legend.get_texts()}
        assert labels == {"prior", "released posterior, ε = 1.5", "posterior without privacy"}
        for ax in axes:
            x, y = self.lines(ax)["C0"].get_data()
            assert np.trapezoid(y, x) == pytest.approx(1, abs=0.05)
            assert abs(np.trapezoid(x * y, x)) < 0.5
            assert np.max(y) == pytest.approx(0.4, abs=0.15)
        x, y = self.lines(axes[0])["0.6"].get_data()
        assert_allclose(y, np.exp(-(x**2) / 18) / math.sqrt(18 * math.pi), atol=0.03)

    def test_labels_and_choice(self, plt, rng):
        posterior = result(beta=rng.normal(size=(2, 50, 3)), mu=rng.normal(size=(2, 50)))
        group = posterior["posterior"]
        dataset = group.to_dataset() if hasattr(group, "to_dataset") else group
        named = dataset.assign_coords(predictor=["age", "dose", "sex"])
        given = plt.subplots(1, 3)[1]
        axes = plot_posterior(named, dataset, var_names=["beta"], axes=given)
        assert [ax.get_xlabel() for ax in axes] == ["beta[age]", "beta[dose]", "beta[sex]"]
        assert all(a is b for a, b in zip(axes, given, strict=True))
        assert len(plot_posterior(posterior, group, var_names=["mu"])) == 1

    def test_bandwidth_knows_of_autocorrelation(self, rng):
        """Four times repeated draws make no density of four times as many."""
        grid = np.linspace(-4, 4, 200)
        few = rng.normal(size=(2, 200))
        normal = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
        repeated = diagnostics._density(grid, np.repeat(few, 10, axis=1), False)
        once = diagnostics._density(grid, few, False)
        assert np.max(abs(repeated - once)) < 0.05
        assert np.max(abs(once - normal)) < 0.1
        fine = diagnostics._density(
            grid, rng.permutation(np.repeat(few, 10).reshape(2, -1), axis=1), False
        )
        assert np.std(np.diff(fine, 2)) > 1.2 * np.std(np.diff(once, 2))

    def test_positive_draws_have_no_mass_below_zero(self, plt, rng):
        (ax,) = plot_posterior(result(tau=rng.exponential(size=(2, 800))))
        x, y = ax.get_lines()[0].get_data()
        assert not y[x < 0].any()
        assert y[x >= 0][0] > 0.65  # 1 by law, 0.5 without the mirror image
        (ax,) = plot_posterior(result(mu=rng.normal(size=(2, 800))))
        x, y = ax.get_lines()[0].get_data()
        assert y[x < 0].any()

    def test_a_chain_that_never_moved(self, plt):
        (ax,) = plot_posterior(result(mu=np.full((1, 30), 2.0)))
        x, y = ax.get_lines()[0].get_data()
        assert x[np.argmax(y)] == pytest.approx(2.0, abs=0.02)

    def test_errors(self, plt, rng):
        posterior = result(beta=rng.normal(size=(2, 30, 5)))
        for options, message in (
            ({"var_names": ["tau"]}, "tau.*There: beta"),
            ({"prior": result("prior", tau=np.ones((1, 9)))}, "No variable in common"),
            ({"prior": {"beta": np.ones((1, 9, 4))}}, "shape of a draw"),
            ({"reference": {"beta": np.full((1, 9, 5), np.nan)}}, "finite"),
            ({"prior": posterior}, "prior"),
            ({"axes": plt.subplots(1, 2)[1]}, "5 panels"),
        ):
            with pytest.raises(ValueError, match=message):
                plot_posterior(posterior, **options)
        with pytest.raises(ValueError, match=r"25 panels.*var_names"):
            plot_posterior(result(beta=rng.normal(size=(2, 30, 25))))


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for plot in (plot_epsilon, plot_posterior):
        with pytest.raises(ImportError, match=r'pip install "pymc-dp\[plots\]"'):
            plot([])
