"""sample(): noisy scores by default; plans and steps; what is refused, and what is never lost."""

import functools
import json
import math

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_dp as dp

from pymc_dp import codec
from pymc_dp.publishing import warn_of_chains
from pymc_dp.scores.results import joint_report

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS",
    "ignore:The chains disagree:UserWarning",
    "ignore:fit check",
)

N = 400
X = np.column_stack([np.ones(N), np.random.default_rng(1).normal(size=N)])
Y = np.random.default_rng(2).poisson(np.exp(X @ [1.0, 0.5]))
TERMS = {"epsilon": 4.0, "delta": 1e-6}
QUIET = {"progressbar": False, "cores": 1, "compute_convergence_checks": False}
SHORT = {"draws": 30, "chains": 2, "random_seed": 1} | QUIET


def counts(x=X, y=Y):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=x.shape[1])
        pm.Deterministic("rate", pm.math.exp(x @ beta))  # shows the covariates
        pm.Deterministic("ratio", pm.math.exp(beta))
        pm.Poisson("y", pm.math.exp(x @ beta), observed=y)
    return model


@pytest.fixture(scope="module")
def model():
    return counts()


@pytest.fixture(scope="module")
def simulator(model, quick_scores):
    """The model, compiled once."""
    return dp.Simulator(model, covariates="public")


@pytest.fixture(scope="module")
def released(simulator, tmp_path_factory):
    """The result of a run, and its account."""
    path = tmp_path_factory.mktemp("a") / "data.ledger"
    result = dp.sample(
        **TERMS, simulator=simulator, ledger=path, draws=250, random_seed=1, **QUIET
    )  # fmt: skip
    return dp.Ledger(path), result


class TestScores:
    """dp.sample(epsilon=, delta=)."""

    def test_it_is_near_the_posterior_without_privacy(self, released):
        posterior = released[1].posterior["beta"]
        assert posterior.sizes["chain"] == 4 and posterior.sizes["draw"] == 250
        beta = np.zeros(2)
        for _ in range(30):  # the posterior's mode; its law is nearly normal
            rate = np.exp(X @ beta)
            precision = (X * rate[:, None]).T @ X + np.eye(2) / 4
            beta = beta + np.linalg.solve(precision, X.T @ (Y - rate) - beta / 4)
        sd = np.sqrt(np.diag(np.linalg.inv(precision)))
        # Variances add: what the release adds to the posterior's is that of its shift.
        added = np.maximum(posterior.var(("chain", "draw")).to_numpy() / sd**2 - 1, 0.05)
        shift = np.abs(posterior.mean(("chain", "draw")).to_numpy() - beta) / sd
        assert (added < 3).all() and (shift < 4 * np.sqrt(added) + 0.3).all()
        ratio = posterior.std(("chain", "draw")).to_numpy() / sd
        assert (0.85 < ratio).all() and (ratio < 1.5).all()

    def test_what_is_published(self, released):
        """Parameters, what follows from them alone, and statistics of chains that never saw the data."""
        ledger, result = released
        assert set(result.posterior.data_vars) == {"beta", "ratio"}
        assert set(result.sample_stats.data_vars) == set(dp.DPScore.stats_dtypes_shapes)
        report = dp.PrivacyReport.of(result)
        assert report.protected and report.uncovered == () and report.n_records == N
        assert 0.99 * 4.0 < report.epsilon <= 4.0 and result.attrs["epsilon"] == report.epsilon
        assert set(result.attrs) == {
            "privacy_report", "epsilon", "delta", "adjacency", "pymc_dp_version", "private_scores",
            "fit_check", "fit_check_p",
        }  # fmt: skip
        assert set(report.covers) == {"posterior", "sample_stats"}
        assert 0 < ledger.spent() <= 4.0 and [c.step for c in ledger.claims()][-2:] == [
            "fit check",
            "scores",
        ]
        text = str(report)
        assert "Only the noisy sums are released" in text and "free, in any number" in text
        assert "The covariates of the model are public" in text
        assert "shared over" not in text and "accept/reject" not in text

    def test_the_file_is_enough_to_go_on(self, released, simulator, tmp_path):
        """Draws of another analyst: the same scores, the same report, nothing spent."""
        ledger, result = released
        result.to_netcdf(tmp_path / "r.nc")
        read = az.from_netcdf(tmp_path / "r.nc")
        assert dp.PrivacyReport.of(read).uncovered == ()
        scores = dp.PrivateScores.of(read)
        assert codec.dumps(scores) == codec.dumps(dp.PrivateScores.of(result))
        before = len(ledger.claims())
        step = dp.DPScore(scores, simulator=simulator, model=simulator.model)
        again = dp.sample(step=step, **SHORT)
        assert again.posterior.sizes["draw"] == 30 and len(ledger.claims()) == before
        assert dp.PrivacyReport.of(again).epsilon == dp.PrivacyReport.of(result).epsilon
        assert "private_scores" in dp.release(again).attrs
        with pytest.raises(ValueError, match="There are no scores"):
            dp.PrivateScores.of(again.posterior)

    def test_an_error_keeps_what_was_paid_for(self, simulator, monkeypatch):
        asked = []
        with monkeypatch.context() as patch:

            @functools.wraps(pm.sample)
            def interrupted(*args, **kwargs):
                asked.append(kwargs)
                raise KeyboardInterrupt

            patch.setattr(pm, "sample", interrupted)
            with pytest.raises(KeyboardInterrupt) as caught:
                dp.sample(**TERMS, simulator=simulator, random_seed=1)
        assert [asked[0][k] for k in ("draws", "tune", "chains")] == [1000, 0, 4]
        error = caught.value
        assert error.budget.spent() == pytest.approx(4.0, rel=1e-3)
        step = dp.DPScore(error.scores, simulator=simulator, model=simulator.model)
        report = dp.PrivacyReport.of(dp.sample(step=step, **SHORT))
        assert report.epsilon == error.budget.spent()

    def test_a_plan_and_a_budget_do_the_same(self, simulator, monkeypatch):
        """All but the noise follows from random_seed; and none of it from the observed values."""
        made = []
        plans = [
            dp.plan(**TERMS, simulator=simulator, random_seed=1),
            dp.plan(**TERMS, model=counts(y=np.zeros(N, dtype=int)), covariates="public", random_seed=1),
        ]  # fmt: skip
        assert str(plans[0]) == str(plans[1]) and isinstance(plans[0], dp.scores.ScorePlan)

        def stop(plan):
            made.append(str(plan))
            raise KeyboardInterrupt

        monkeypatch.setattr(dp.scores.ScorePlan, "release", stop)
        for given in ({"plan": plans[0]}, TERMS | {"simulator": simulator}):
            with pytest.raises(KeyboardInterrupt):
                dp.sample(**given, **SHORT)
        assert made == [str(plans[0])] * 2

    def test_an_account_that_does_not_pay_is_not_touched(self, simulator, tmp_path):
        ledger = dp.Ledger(tmp_path / "l", epsilon=1.0, delta=1e-6)
        other = dp.PrivacyBudget(0.5, 1e-6, chains=1, ledger=ledger)
        other.spend("another analysis", [(dp.privacy.Gaussian(10.0), 1)])
        with pytest.raises(dp.PrivacyBudgetExhausted) as caught:
            dp.sample(epsilon=1.0, delta=1e-6, simulator=simulator, ledger=ledger, **SHORT)
        assert caught.value.scores is None and caught.value.budget.spent() == 0
        assert len(ledger.claims()) == 1

    def test_scores_of_two_budgets(self, released):
        """Their costs add up."""
        report = dp.PrivacyReport.of(released[1])
        both = joint_report([report, report])
        assert both.epsilon == 2 * report.epsilon and both.delta == 2 * report.delta
        assert all(report.attack_power[k] < p <= 1 for k, p in both.attack_power.items())
        assert len(both.one_off_accesses) == 2 * len(report.one_off_accesses)
        weak = joint_report([report, dp.PrivacyBudget(math.inf, 0.1, chains=1).report()])
        assert not weak.protected and weak.attack_power == {"0.1%": 1.0, "1%": 1.0}
        assert json.loads(both.to_json())["gaussian_mu"] is None


class TestSteps:
    """Samplers that pay for each draw."""

    GUESS = {"beta": [1.0, 0.5]}

    def test_a_step_uses_its_model_and_chains(self, model, simulator):
        """Outside of the model's context; the report covers what the budget paid for."""
        budget = dp.PrivacyBudget(**TERMS, chains=2)
        options = {"clip_bound": 0.5, "proposal": dp.RandomWalk(0.05), "noise_scale": 2.0}
        options |= {"model": model, "likelihood": simulator.likelihood}
        step = dp.DPPenalty(budget=budget, **options)
        result = dp.sample(step=step, initvals=self.GUESS, random_seed=1, **QUIET)
        assert result.posterior.sizes["chain"] == 2 and result.posterior.sizes["draw"] > 1
        report = dp.PrivacyReport.of(result)
        assert 3.5 < report.epsilon <= 4.0 and "shared over 2" in str(report)
        with pytest.raises(ValueError, match="another model"):
            dp.sample(step=step, model=pm.Model())
        with pytest.raises(ValueError, match=r"run it with pm\.sample"):
            dp.sample(step=dp.DPPenalty(budget=None, **options))


def test_the_number_of_records_under_add_remove(model):
    for function in (dp.plan, dp.sample):
        with pytest.raises(ValueError, match="the number of records is private"):
            function(**TERMS, adjacency="add_remove", model=model)


def test_chains_that_disagree_or_do_not_move():
    def result(draws, accepted):
        groups = {
            "posterior": xr.Dataset({"mu": (("chain", "draw"), draws)}),
            "sample_stats": xr.Dataset({"accepted": (("chain", "draw"), accepted)}),
        }
        groups = {
            name: group.assign_coords(chain=range(len(draws)), draw=range(draws.shape[1]))
            for name, group in groups.items()
        }
        if "InferenceData" in dir(az):
            return az.InferenceData(**groups)
        return xr.DataTree.from_dict(groups)

    rng = np.random.default_rng(1)
    good, moved = rng.normal(size=(2, 200)), np.ones((2, 200), dtype=bool)
    warn_of_chains(result(good, moved), pays=True)  # warnings are errors
    warn_of_chains(result(good[:1], moved[:1]), pays=True)
    with pytest.warns(UserWarning, match="R-hat"):
        warn_of_chains(result(good + np.array([[0.0], [3.0]]), moved), pays=True)
    slow = np.repeat(good[:, ::25], 25, axis=1)  # 16 different draws in 400
    warn_of_chains(result(good, moved), pays=False)
    with pytest.warns(
        UserWarning, match=r"mix slowly \(effective draws {'mu': \d+}\).*narrower prior"
    ):
        warn_of_chains(result(slow, moved), pays=False)
    moved[1] = False
    with pytest.warns(UserWarning, match=r"Chains \[1\] have not moved"):
        warn_of_chains(result(good, moved), pays=True)
