"""sample() without a step: planned, begun in the bulk, run, released, on one budget."""

import math
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_dp as dp

from pymc_dp.costs import check_account
from pymc_dp.model.records import RecordLikelihood
from pymc_dp.privacy.composition import Cost
from pymc_dp.privacy.report import PrivacyReport
from pymc_dp.sampling import _check
from pymc_dp.starting import start_accesses

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS", "ignore:The chains disagree:UserWarning"
)

Y = np.random.default_rng(7).normal(12.0, 3.0, size=20_000)
TERMS = {"epsilon": 3.0, "delta": 1e-6, "chains": 2}
QUIET = {"progressbar": False, "cores": 1, "compute_convergence_checks": False}


@pytest.fixture
def model():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 50), pm.HalfNormal("sigma", 10), observed=Y)
    return model


def test_a_model_and_a_budget_are_enough(model, tmp_path, caplog):
    ledger = tmp_path / "data.ledger"
    with model, caplog.at_level("INFO", logger="pymc.dp"):
        released = dp.sample(**TERMS, draws=300, ledger=ledger, random_seed=1, **QUIET)
    expected = {"mu": Y.mean(), "sigma": Y.std()}
    for name, sd in (("mu", 1.0), ("sigma", math.sqrt(0.5))):
        draws = released.posterior[name].to_numpy()
        sd *= Y.std() / math.sqrt(len(Y))
        # The plan expects errors of about 0.2 standard deviations.
        assert abs(draws.mean() - expected[name]) < 0.8 * sd
        assert 0.8 * sd < draws.std() < 1.4 * sd
    account = dp.Ledger(ledger)
    assert account.claims()[0].step == "private start"
    assert account.claims()[1].step == "sum of gradients"
    assert len(account.claims()) == 4
    assert 2.9 < account.spent() <= 3.0
    assert "private start" in released.posterior.attrs.get("privacy_report", "") + str(
        getattr(released, "attrs", "")
    )
    text = caplog.text
    assert text.index("effective draws are expected") < text.index("Plan for epsilon = 3")
    assert "private data were not looked at" in text


def test_a_planned_run_in_gaussian_dp(model, tmp_path):
    """Start, sum and decisions by squares of mu: less noise in the sums, fewer decisions."""
    start = {"mu": 11.5, "sigma": 3.0}
    ledger = dp.Ledger(tmp_path / "l", epsilon=3.0, delta=1e-6, accountant="gaussian")
    released = dp.sample(
        **TERMS, accountant="gaussian", model=model, draws=100, start=start, ledger=ledger, random_seed=1, **QUIET
    )  # fmt: skip
    report = dp.PrivacyReport.of(released)
    assert report.epsilon == 3.0 and report.proved_by == "gaussian"
    total = Cost.of(a for claim in ledger.claims() for a in claim.accesses)
    assert 0.999 < math.sqrt(total.mu_squared) / report.gaussian_mu <= 1
    assert abs(released.posterior["mu"].mean() - Y.mean()) < 3 * Y.std() / math.sqrt(len(Y))
    order = start_accesses(dp.PrivacyBudget(**TERMS), 0.15)[0][0].noise_multiplier
    assert 0.92 < noise_of_the_start(ledger) / order < 0.95


def noise_of_the_start(ledger):
    """Its multiplier, as claimed."""
    return ledger.claims()[0].accesses[0][0].noise_multiplier


def test_what_is_declared_public_is_in_the_report():
    """Covariates that are declared public may be planned with, too; so may arrays of a prior."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(len(Y), 2))
    y = x @ [0.5, -1.0] + rng.normal(size=len(Y))
    with pm.Model() as model:
        b = pm.Normal("b", [0.3, -0.5], 2.0, shape=2)
        pm.Normal("y", pm.Data("x", x) @ b, 1.0, observed=y)
        pm.Deterministic("contrast", (b * np.array([1.0, -1.5])).sum())
    with pytest.raises(dp.UnsupportedModel, match="prior of 'b' depends on data"):
        dp.sample(**TERMS, model=model, public_covariates=True, **QUIET)
    with pytest.raises(ValueError, match=r"has covariates \(x\)"):
        dp.sample(**TERMS, model=model, public=["b"], **QUIET)
    public = ["b", "x", [1.0, -1.5]]
    released = dp.sample(**TERMS, draws=50, model=model, public=public, random_seed=1, **QUIET)
    report = PrivacyReport.of(released)
    assert report.public == ("arrays of b", "x", "an array of shape (2,)")
    assert "declared public" in str(report) and "contrast" in released.posterior
    assert abs(released.posterior["b"].mean(("chain", "draw")) - [0.5, -1.0]).max() < 0.1


@pytest.mark.slow
def test_draws_that_the_budget_does_not_pay_for_are_no_error(tmp_path, caplog):
    """Start and sum are paid for when it shows."""
    y = Y[:2000]
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 50), pm.HalfNormal("sigma", 10), observed=y)
    start = {"mu": 12.0, "sigma": 3.0}
    with caplog.at_level("INFO", logger="pymc.dp"):
        released = dp.sample(
            **TERMS, model=model, draws=10**9, start=start, ledger=tmp_path / "l", random_seed=1, **QUIET
        )  # fmt: skip
    assert 1 < released.posterior.sizes["draw"] < 10**6
    assert "draws=1000000000 is more than the budget pays for" in caplog.text


def test_a_dry_run_touches_nothing(model, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the data were touched")

    monkeypatch.setattr(RecordLikelihood, "clipped_grad_steps", refuse)
    ledger = tmp_path / "data.ledger"
    found = dp.sample(
        **TERMS, ledger=ledger, model=model, dry_run=True, start={"mu": 10.0, "sigma": 2.0}
    )
    assert isinstance(found, dp.SurrogatePlan) and found.chosen.effective_draws > 10
    assert dp.Ledger(ledger).claims() == []


@pytest.mark.slow
def test_what_a_start_is_going_to_take_is_not_there_for_the_chains(model):
    options = {"model": model, "dry_run": True, "start": {"mu": 10.0, "sigma": 2.0}}
    usual, more = (dp.sample(**TERMS, **options, start_share=share) for share in (0.15, 0.6))
    assert more.chosen.error > usual.chosen.error


def test_an_account_that_is_nearly_spent_pays_for_no_start_either(model, tmp_path):
    """A start without chains would be lost; a smaller budget is not refused."""
    ledger = dp.Ledger(tmp_path / "data.ledger", epsilon=4.0, delta=1e-6)
    other = dp.PrivacyBudget(3.5, 1e-6, chains=1, ledger=ledger)
    other.spend("another analysis", [(dp.privacy.Gaussian(1.6), 1)])
    for terms in ({"epsilon": 3.0}, {"epsilon": 4.0, "start_share": 0.3}):
        with pytest.raises(
            dp.PrivacyBudgetExhausted, match=r"asked for by this run: .* of that share"
        ):
            dp.sample(**TERMS | terms, model=model, ledger=ledger, start={"mu": 12.0, "sigma": 3.0})
    assert len(ledger.claims()) == 1
    less = dp.PrivacyBudget(1.0, 1e-6, chains=2, ledger=ledger)
    check_account(less, start_accesses(less, 0.15))
    for epsilon in (3.0, math.inf):  # all of an account, nothing spent
        whole = dp.PrivacyBudget(epsilon, 1e-6, chains=2)
        check_account(whole, start_accesses(whole, 0.15))


def test_arguments_that_belong_to_a_plan(model):
    for option in ({"dry_run": True}, {"start": {"mu": 1.0}}, {"public_covariates": True}):
        with pytest.raises(ValueError, match="leave out step"):
            dp.sample(**TERMS, model=model, step=dp.DPHMC, **option)
    with pytest.raises(TypeError, match="sets tune"):
        dp.sample(**TERMS, model=model, tune=100)
    with pytest.raises(TypeError, match="proposal"):  # settings of one's own are for DPPenalty
        dp.sample(**TERMS, model=model, clip_bound=2.0, laziness=0.5)


def test_the_number_of_records_under_add_remove(model):
    options = TERMS | {"adjacency": "add_remove", "dry_run": True, "model": model}
    with pytest.raises(ValueError, match="the number of records is private"):
        dp.sample(**options)
    made_up = {"n_records": 10_000, "stand_in": model, "start": {"mu": 10.0, "sigma": 2.0}}
    assert dp.sample(**options, **made_up).n_records == 10_000


@pytest.mark.parametrize(
    "wrong, error, match",
    [
        ({"foo": 3}, TypeError, "no argument foo"),
        ({"target_accept": 0.9, "steps": 48}, TypeError, "no argument steps, target_accept"),
        ({"nuts_sampler": "nutpie"}, TypeError, "no argument nuts_sampler"),
        ({"initvals": {"lamb": 3.0}}, ValueError, "no variables lamb"),
        ({"initvals": [{"mu": 3.0}, {"lamb": 3.0}]}, ValueError, "no variables lamb"),
        ({"var_names": ["mu", "nope"]}, ValueError, "no variables nope"),
        ({"random_seed": "a"}, ValueError, "random_seed must be .* got 'a'"),
        ({"cores": 0}, ValueError, "cores"),
        ({"trace": 5}, TypeError, "trace must be .* got a int"),
    ],
)
def test_what_pymc_would_refuse_costs_nothing(wrong, error, match, model, tmp_path):
    """It reads these when it begins to sample, and most of the budget is spent by then."""
    ledger = dp.Ledger(tmp_path / "data.ledger", epsilon=4.0, delta=1e-6)
    with pytest.raises(error, match=match):
        dp.sample(**TERMS, model=model, ledger=ledger, start={"mu": 12.0, "sigma": 3.0}, **wrong)
    assert ledger.claims() == []


def test_a_start_that_is_not_found_keeps_the_rest_of_the_budget(tmp_path):
    ledger = dp.Ledger(tmp_path / "data.ledger", epsilon=4.0, delta=1e-6)
    with pm.Model() as far:
        pm.Normal("y", pm.Normal("mu", 0, 1e8), 1.0, observed=1e6 + Y)
    terms = {"epsilon": 3.9, "delta": 1e-6, "chains": 1, "ledger": ledger, "model": far}
    with (
        pytest.warns(UserWarning, match="has not come to rest"),
        pytest.raises(dp.StartNotFound, match="15% of the budget") as caught,
    ):
        dp.sample(**terms, **QUIET)
    (claim,) = ledger.claims()
    account = ledger.account.adaptive
    assert account.price_of(Cost.of(claim.accesses)) < 0.15 * account.limit
    assert ledger.spent() < 0.55 * 3.9
    assert not caught.value.start.at_rest and 1e3 < caught.value.start.theta[0]
    with pytest.raises(ValueError, match=r"start is where the prior is zero: .*nan"):
        dp.sample(**terms, start={"mu": math.nan})


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, -0.1, math.nan])
def test_share_of_the_start(share):
    """Refused where it is turned into accesses, whoever asks."""
    with pytest.raises(ValueError, match="share must be from"):
        start_accesses(dp.PrivacyBudget(1.0, 1e-6, chains=1), share)


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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _check(result(good, moved), 2)
        _check(result(good[:1], moved[:1]), 1)
    with pytest.warns(UserWarning, match="R-hat"):
        _check(result(good + np.array([[0.0], [3.0]]), moved), 2)
    moved[1] = False
    with pytest.warns(UserWarning, match=r"Chains \[1\] have not moved"):
        _check(result(good, moved), 2)
