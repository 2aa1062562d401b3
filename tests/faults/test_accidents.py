"""Five ways to lose privacy by accident, each refused or caught."""

import logging
import math

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPPenalty, PrivacyBudget, PrivacyReport, release
from pymc_dp.errors import (
    LedgerError,
    PrivacyBudgetExhausted,
    PrivacyLeak,
    PrivacyLeakWarning,
)
from tests.hosting.test_hosting import QUIET, make_step, record_charges, run


class TestUncoveredVariable:
    """PyMC silently gives NUTS, on the raw likelihood, to variables without a step."""

    @pytest.mark.slow
    def test_refused_before_any_data_are_touched(self, two_variable_model):
        budget = PrivacyBudget(2.0, 1e-5, chains=1)
        step = make_step(two_variable_model, budget, vars=[two_variable_model["mu"]])
        with pytest.raises(PrivacyLeak, match=r"sigma_log__.*NUTS"):
            run(two_variable_model, budget, step, chains=1)
        assert not budget.ledger.claims()

    def test_release_refuses_foreign_statistics(self, two_variable_model):
        budget = PrivacyBudget(math.inf, 1e-5, chains=1)
        with two_variable_model as model:
            private = make_step(model, budget)
            with_slice = [private, pm.Slice([model["sigma"]])]
            idata = pm.sample(draws=50, tune=0, chains=1, cores=1, step=with_slice, **QUIET)
            with pytest.raises(PrivacyLeak, match="foreign statistics"):
                release(idata, model, budget)


class TestTooManyChains:
    """A step does not get the number of chains, and PyMC's default depends on the machine."""

    @pytest.mark.parametrize(
        "parallel", [{"cores": 1}, {"cores": 2, "mp_ctx": "fork"}], ids=["sequential", "parallel"]
    )
    def test_refused(self, normal_model, parallel):
        budget = PrivacyBudget(2.0, 1e-5, chains=2)
        step = make_step(normal_model, budget)
        with pytest.raises(PrivacyBudgetExhausted, match=r"3 chain\(s\).*chains=2"):
            run(normal_model, budget, step, chains=3, **parallel)
        assert (
            not budget.ledger.claims()
        )  # nothing was touched: the right number of chains still runs
        run(normal_model, budget, step, chains=2, **parallel)

    def test_fewer_chains_leave_their_shares(self, normal_model):
        budget = PrivacyBudget(2.0, 1e-5, chains=2)
        step = make_step(normal_model, budget)
        run(normal_model, budget, step, chains=1)
        assert 0 < budget.spent() < 1.9
        run(normal_model, budget, step, chains=1)
        assert budget.spent() == pytest.approx(2.0, rel=1e-4)


class TestTuneDraws:
    """Tuning draws look at the data like any others."""

    def test_are_charged(self, normal_model, monkeypatch, caplog):
        paid = record_charges(monkeypatch)
        budget = PrivacyBudget(3.0, 1e-5, chains=1)
        with caplog.at_level(logging.WARNING, logger="pymc.dp"):
            idata = run(normal_model, budget, make_step(normal_model, budget), chains=1, tune=40)
        assert len(paid) == idata.posterior.sizes["draw"] + 40
        assert "tune=0" in caplog.text

    @pytest.mark.parametrize(
        "parallel, compound", [({"cores": 1}, True), ({"cores": 2, "mp_ctx": "fork"}, False)]
    )
    def test_more_than_a_chain_has_are_refused_at_no_cost(
        self, two_variable_model, parallel, compound
    ):
        """PyMC 5 makes 1000 by default."""
        model, budget = two_variable_model, PrivacyBudget(4.0, 1e-5, chains=2)
        own = [[v] for v in model.free_RVs] if compound else [None]
        steps = [make_step(model, budget, vars=vars) for vars in own]
        with pytest.raises(Exception, match=r"tune=1000 .*pass tune=0") as caught:
            run(model, budget, steps, tune=1000, **parallel)
        assert parallel["cores"] == 2 or caught.type is PrivacyBudgetExhausted
        assert budget.spent() == 0 and not budget.ledger.claims()
        run(model, budget, steps, **parallel)

    def test_a_budget_that_goes_up_in_tuning_is_an_error(self, normal_model):
        """Without a number of chains."""
        budget = PrivacyBudget(1.0, 1e-5, chains=1)
        step, point = make_step(normal_model, budget), normal_model.initial_point()
        step.set_rng(np.random.default_rng(1))
        with pytest.raises(PrivacyBudgetExhausted, match="tune=0"):
            for _ in range(5000):
                point, _ = step.step(point)
        assert budget.spent() <= 1.0

    def test_none_by_default_where_the_host_asks(self):
        assert DPPenalty.default_tune_steps == 0


class TestSecondRun:
    """A spent budget stays spent."""

    def test_new_budget_on_the_same_ledger(self, normal_model, tmp_path):
        path = tmp_path / "hospital.ledger"
        first = PrivacyBudget(2.0, 1e-5, chains=1, ledger=path)
        run(normal_model, first, make_step(normal_model, first), chains=1)
        second = PrivacyBudget(2.0, 1e-5, chains=1, ledger=path)
        with pytest.raises(
            PrivacyBudgetExhausted, match=r"allows epsilon = 2 at delta.*left: epsilon = 0"
        ):
            run(normal_model, second, make_step(normal_model, second), chains=1)
        assert len(first.ledger.claims()) == 1

    def test_an_account_cannot_be_raised(self, tmp_path):
        path = tmp_path / "hospital.ledger"
        PrivacyBudget(1.0, 1e-5, chains=1, ledger=path)
        for epsilon, delta in ((2.0, 1e-5), (1.0, 1e-4), (math.inf, 1e-5)):
            with pytest.raises(LedgerError, match="cannot be raised"):
                PrivacyBudget(epsilon, delta, chains=1, ledger=path)
        with pytest.raises(LedgerError, match="adjacency"):
            PrivacyBudget(1.0, 1e-5, chains=1, ledger=path, adjacency="add_remove")


class TestPublishing:
    """What pm.sample returns holds the data; what release returns does not."""

    @pytest.fixture
    def result(self, normal_model):
        budget = PrivacyBudget(3.0, 1e-5, chains=2)
        idata = run(normal_model, budget, make_step(normal_model, budget))
        return idata, normal_model, budget

    def test_keep_is_explicit(self, result):
        idata, model, budget = result
        with pytest.warns(PrivacyLeakWarning, match="residual"):
            assert "residual" in release(idata, model, budget, keep=["residual"]).posterior
        assert "squared" in release(idata, model, budget, keep=["squared"]).posterior
        with pytest.raises(ValueError, match=r"not free variables or Deterministics.*nonsense"):
            release(idata, model, budget, keep=["nonsense"])

    def test_the_report_is_kept_in_files(self, result, tmp_path):
        import arviz as az

        idata, model, budget = result
        public = release(idata, model, budget)
        public.to_netcdf(str(tmp_path / "public.nc"))
        again = az.from_netcdf(str(tmp_path / "public.nc"))
        report = PrivacyReport.of(again)
        assert report == PrivacyReport.of(public.posterior) == PrivacyReport.of(public)
        assert replace(report, covers=None) == budget.report()
        assert str(report) == str(budget.report())
        assert report.epsilon == pytest.approx(budget.spent())
        assert report.adjacency == "substitute" and report.n_records == 400
        assert float(again.posterior.attrs["delta"]) == 1e-5
        for other in (idata, idata.posterior, "privacy_report"):
            with pytest.raises(ValueError, match="no privacy report"):
                PrivacyReport.of(other)

    def test_idle_draws_are_cut(self, normal_model):
        """A run without the callback ends in unchanged, flagged points; they are not published."""
        budget = PrivacyBudget(3.0, 1e-5, chains=1)
        step = make_step(normal_model, budget)
        draws = int(budget.expected_draws()) + 400
        with normal_model:
            idata = pm.sample(draws=draws, tune=0, chains=1, cores=1, step=step, **QUIET)
        idle = int(idata.sample_stats["exhausted"].sum())
        assert idle > 0
        assert release(idata, normal_model, budget).posterior.sizes["draw"] == draws - idle
