"""Texts of all public objects: short, without data, addresses and entries of arrays."""

import copy
import dataclasses
import enum
import inspect
import pickle
import typing

import numpy as np
import pymc as pm
import pytest

from distributed import Client
from pymc.distributions.distribution import Distribution

import pymc_dp as dp

from pymc_dp.comparison.comparison_result import PrivateComparisons
from pymc_dp.display import MOST_ROWS, Shown, Table, in_short, one_line
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.accounting.filters import Share
from pymc_dp.privacy.budget.claims import StepReport
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.queries.stand_in import uniform_stand_in
from pymc_dp.queries.stand_in_design import design_stand_in
from pymc_dp.scores.check_design import CheckDesign, TailMisfit
from pymc_dp.scores.simulated_scores import MomentDesign
from pymc_dp.steps.base import DPStep
from tests import test_sites
from tests.terms import score_moments
from tests.test_public import PLACES

pytestmark = [
    pytest.mark.filterwarnings("ignore::pymc_dp.errors.PrivacyLeakWarning"),
    pytest.mark.filterwarnings("ignore:fit check"),  # of chains that hardly warm up
]

#: A report is longer if there are many claims: it states all of them.
LONGEST_LINE, LONGEST_TEXT, MOST_LINES = 700, 2500, 30
#: A value of the data that no text may have.
SECRET = 7.123456


# ------------------------------------------------------------------- which classes are public
def _classes(hint):
    if isinstance(hint, type):
        yield hint
    for part in typing.get_args(hint):
        yield from _classes(part)


def _returned(function):
    if not inspect.isfunction(function):
        return ()
    try:
        return _classes(typing.get_type_hints(function).get("return"))
    except NameError:  # a name that is imported for type checkers only
        return ()


def public_classes():
    """Classes that have a public name, and those of results, properties and fields, and of theirs in turn."""
    found, to_do = set(), []
    for place in [*PLACES, dp.data]:
        for name in place.__all__:
            value = getattr(place, name)
            to_do += [value] if isinstance(value, type) else _returned(value)
    while to_do:
        cls = to_do.pop()
        if cls in found or not cls.__module__.startswith("pymc_dp"):
            continue
        found.add(cls)
        for name, member in vars(cls).items():
            function = getattr(member, "fget", getattr(member, "func", member))
            if not name.startswith("_"):
                to_do += _returned(getattr(function, "__func__", function))
        for name, hint in getattr(cls, "__annotations__", {}).items():
            if dataclasses.is_dataclass(cls) and not name.startswith("_"):
                to_do += _classes(typing.get_type_hints(cls).get(name, hint))
    return found


#: Nobody holds an instance: bases, protocols, types of arguments, laws that PyMC turns into variables.
def _is_never_held(cls):
    bases = {Likelihood, Share, DPStep, dp.steps.AcceptRejectStep, dp.steps.ProposalStep}
    return (
        inspect.isabstract(cls)
        or cls in bases
        or getattr(cls, "_is_protocol", False)
        or typing.is_typeddict(cls)
        or issubclass(cls, BaseException | enum.Enum | Distribution)
    )


# ------------------------------------------------------------------------------- objects
def _normal(y):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3, shape=2)
        pm.Normal("y", mu.sum(), 1, observed=pm.Data("data", y))
    return model


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """Objects that need no model, by class."""
    rng = np.random.default_rng(1)
    y = np.append(rng.normal(size=299), SECRET)
    privacy, steps = dp.privacy, dp.steps
    budget = dp.PrivacyBudget(1.0, 1e-6, chains=4)
    for k in range(30):
        budget.spend(f"release {k}", [(privacy.Gaussian(100.0 + k), 1)])
    ledger = dp.Ledger(tmp_path_factory.mktemp("x") / "a.ledger", epsilon=9.0, delta=1e-4)
    for k in range(40):
        ledger.record(mu=0.01, delta=1e-7, note=f"note {k}")
    ranges = dp.Ranges(**{f"x{k}": (0, k + 1) for k in range(30)})
    stand_in = uniform_stand_in(ranges, 300)
    kinds = Cost.of([(privacy.Gaussian(1.0 + k), 1) for k in range(500)])
    penalty, share = dp.Penalty(1.0), privacy.RenyiShare(8.0, 0.1)
    law = NoiseLaw("gaussian", 1.0, 2)
    decision = privacy.Decision(penalty, 0.1)
    state = steps.State(y, 0.0, y)
    sums = dp.private_sum(lambda y: [y] * 40, {"y": y}, bound=1.0, budget=dp.PrivacyBudget(1.0, 1e-6, chains=1))  # fmt: skip
    counts = dp.private_counts(lambda y: y, {"y": y}, edges=np.linspace(-3, 3, 99), budget=dp.PrivacyBudget(1.0, 1e-6, chains=1))  # fmt: skip
    forecast = dp.comparison.ClipForecast(1.0, 0.1, (0.1, 0.2), 1.0, 0.1)
    comparison = dp.comparison.PrivateComparison(
        ("a", "b"), 3.0, 2.0, 1.0, law, 1.0, forecast, 300, sums.report
    )
    checked = dp.checks.CheckedStatistic("mean", tuple("abc"), y[:3], rng.normal(size=(500, 3)), y[:3], 0.5)  # fmt: skip
    planned = dp.planning.Forecast(1.0, 2.0, 0.1, 0.2)
    return [
        budget, ledger, ledger.budget_claims()[0], budget.ledger.claims()[0], ledger.claimed(budget.terms), sums.report, kinds, ranges, ranges.columns[0], stand_in, law,
        budget.terms, budget.terms.adaptive, TailMisfit(),
        penalty, dp.Barker(), steps.Lazy(penalty, 0.5), steps.Metropolis(), share, privacy.GaussianShare(0.1),
        privacy.Filter(share), privacy.Filter(privacy.GaussianShare(0.1)), decision, privacy.Gaussian(2.0),
        privacy.L2Laplace(1.0, n_dim=3), privacy.PureDP(1.0), privacy.ZeroConcentratedDP(0.1),
        privacy.SampledGaussian(2.0, 0.1, privacy.Sampling.POISSON, privacy.Adjacency.ADD_REMOVE), privacy.SampledDecision(penalty, 0.1, 0.05),
        privacy.PoissonMinibatchDecision(dp.Barker(), 0.1, 30.0, 3000), steps.PerProposalDecision(0.1, penalty, None, 1.0, (0.1,) * 999),
        dp.RandomWalk(np.eye(30)), dp.OneComponent(0.1), dp.GuidedWalk(0.1), state, steps.Move(state, state, 0.1, 0.1),
        dp.checks.GroupMeans("x", range(99)), checked, dp.checks.PrivatePPC((checked,) * 8, law, 300, sums.report),
        forecast, comparison, PrivateComparisons((comparison,) * 5), sums, counts, planned,
        dp.planning.Candidate({"length": 1.0, "proposal": dp.RandomWalk(np.eye(30))}, planned), dp.Records({"y": y}),
        *sums.report.steps, StepReport("step", 2, ("x",) * 5, ("y",) * 5), CheckDesign(privacy.L2Laplace(1.0, n_dim=3), (0.9, 0.99)),
        MomentDesign(privacy.L2Laplace(1.0, n_dim=3), 1.0, 0.1), score_moments(y, np.eye(300), 1.0, "l2", 1.0, y),
        dp.model.ClippedChange(y, y, 1.0), dp.model.ClippedScores(y, 1.0), dp.model.ScoreNorms(y, np.eye(300), y), dp.model.ScoreProducts(y, np.eye(300), 1.0),
        design_stand_in(ranges, dp.PrivacyBudget(1.0, 1e-6, chains=1), 300, 0.1),
        dp.scores.PrivateStart({"mu": y}, y, np.eye(300)),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(quick_scores):
    """Objects of a compiled model."""
    y = np.append(np.random.default_rng(1).normal(size=299), SECRET)
    model = _normal(y)
    simulator = dp.Simulator(model)
    budget = dp.PrivacyBudget(1.0, 1e-6, chains=1)
    plan = dp.plan(budget=budget, simulator=simulator, random_seed=1)
    scores = plan.release()
    ranges = dp.Ranges(x=(0, 1))
    stand_in = dp.private_stand_in({"x": y}, ranges, budget=dp.PrivacyBudget(1.0, 1e-6, chains=1))
    records = dp.model.BlockedLikelihood(_normal(np.zeros(1)), dp.Records({"data": y}))
    own = {"budget": dp.PrivacyBudget(4.0, 1e-6, chains=2), "model": model, "likelihood": simulator.likelihood}  # fmt: skip
    bounds = {"clip_bound": 3.0, "proposal": dp.RandomWalk(0.02)}
    chain = dp.DPScore(scores, simulator=simulator)
    walk = dp.plan(step=dp.DPPenalty, epsilon=4.0, delta=1e-6, simulator=simulator, random_seed=1)
    hmc = dp.DPHMC(
        step_size=0.1, n_leapfrog=2, clip_bound=3.0, gradient_clip_bound=3.0, gradient_noise_multiplier=9.0, **own
    )  # fmt: skip
    sghmc = dp.DPSGHMC(
        step_size=0.1, n_steps=2, gradient_clip_bound=3.0, friction=1.0, batch_size=30, **own
    )
    with pm.Model():
        rows = pm.Normal("rows", 0, 1, shape=50)
        dp.DiscreteLaplace("z", pm.math.sum(rows > 0), 1.0, observed=20)
        augmented = dp.PrivatizedRecords([rows])
    with test_sites.served(dp.Records(test_sites.COLUMNS).split(2)) as connections:
        sites = dp.sites.Sites(connections)
        site = dp.sites.Site(test_sites.MODEL, dp.Records(test_sites.COLUMNS), {1: connections[0]}, number=0)  # fmt: skip
    with Client(processes=False, dashboard_address=":0") as client:
        shards = dp.Shards(dp.Records({"y": y}).split(3), client=client)
    last = dp.DPBarker(**bounds | own | {"budget": dp.PrivacyBudget(4.0, 1e-6, chains=2)})
    return [
        sites, site, shards, simulator, simulator.likelihood, records, plan, plan.design, plan.design.design, plan.simulated, scores, *scores.releases,
        plan.simulated.seen_from(plan.simulated), scores.histogram, stand_in, stand_in.error, walk, walk.chosen, dp.DPFastMH(**bounds | own), hmc, sghmc,
        dp.DPPenalty(**bounds | own), last, chain, chain.approximation, augmented,
        dp.scores.check_fit(scores, simulator), last.budget.claim(last.label, last.token),
        chain.target, next(chain.states(1)), chain.target.features,
    ]  # fmt: skip


# --------------------------------------------------------------------------------- tests
def check_texts(value):
    """Texts are short, and show no data."""
    line, text = repr(value), str(value)
    page = value._repr_html_() if isinstance(value, Shown) else ""
    assert len(line) <= LONGEST_LINE and "\n" not in line, line
    assert len(text) <= LONGEST_TEXT and len(text.splitlines()) <= MOST_LINES, text
    assert page.count("<tr>") <= MOST_LINES and len(page) < 3 * LONGEST_TEXT, page
    for shown in (line, text, page):
        assert shown or value is None or shown is page
        for unwanted in (" at 0x", "array([", "dtype", "NoneType", f"{SECRET:.4g}"):
            assert unwanted not in shown, (unwanted, shown)


def test_texts_of_light_objects(light):
    for value in light:
        check_texts(value)


@pytest.mark.slow
def test_texts_of_compiled_objects(compiled):
    for value in compiled:
        check_texts(value)


@pytest.mark.slow
def test_every_public_class_was_tried(light, compiled):
    tried = {cls for value in [*light, *compiled] for cls in type(value).__mro__}
    missing = {cls for cls in public_classes() - tried if not _is_never_held(cls)}
    assert not missing


def test_a_public_class_without_text_is_noticed():
    held = {cls for cls in public_classes() if not _is_never_held(cls)}
    assert {dp.PrivacyBudget, dp.Simulator, dp.scores.ScorePlan, dp.steps.Move} < held
    plain = {cls for cls in held if cls.__repr__ is object.__repr__}
    assert not plain


#: What users print or end a notebook cell with.
TABLES = (
    dp.PrivacyBudget, dp.Ledger, dp.PrivacyReport, dp.Plan, dp.scores.ScorePlan, dp.PrivateScores, dp.scores.FitCheck, DPStep,
    dp.DPScore, dp.PrivatizedRecords, dp.checks.PrivatePPC, dp.comparison.PrivateComparison, dp.queries.PrivateSum,
    dp.queries.PrivateCounts, dp.queries.StandIn, dp.Simulator, dp.RandomWalk, dp.scores.PrivateStart,
)  # fmt: skip


def test_notebooks_get_tables():
    assert all(issubclass(cls, Shown) for cls in TABLES)


def test_budget_states_what_is_spent_and_left(tmp_path):
    budget = dp.PrivacyBudget(1.0, 0.0, chains=2, ledger=tmp_path / "a.ledger")
    budget.spend("means", [(dp.privacy.L2Laplace(0.25, n_dim=1), 1)])
    assert repr(budget) == "PrivacyBudget(epsilon=1, delta=0, chains=2, spent=0.25, left=0.75)"
    page = budget._repr_html_()
    assert all(f">{text}<" in page for text in ("means", "0.25", "0.75", "a.ledger"))
    (tmp_path / "a.ledger").unlink()
    assert "cannot be read" in repr(budget) and "cannot be read" in repr(budget.ledger)


def test_ledger_prints_its_latest_claims_and_lists_all(tmp_path):
    ledger = dp.Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=0.0)
    for k in range(30):
        ledger.record(epsilon=0.1, note=f"note {k}.")
    assert "note 29." in str(ledger) and f"{30 - MOST_ROWS} earlier" in str(ledger)
    assert "note 0." not in str(ledger)
    assert all(f"note {k}." in ledger.listing() for k in range(30))


def test_text_of_a_step_has_its_settings_and_no_data():
    y = np.full(50, SECRET)
    with pm.Model():
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=y)
        step = dp.DPPenalty(budget=None, clip_bound=2.5, proposal=dp.RandomWalk(0.02), records=np.arange(50))  # fmt: skip
    assert repr(step) == "DPPenalty(proposal=RandomWalk(scale=0.02), budget=None, clip_bound=2.5)"


def test_values_in_short():
    assert in_short(np.ones((3, 2))) == "array of shape (3, 2)"
    assert in_short([1.0, np.ones(3)]) == "(1, array of shape (3,))"
    assert (
        in_short(range(3)) == "range(0, 3)"
        and in_short(list(range(9))) == "(0, 1, 2, 3, ... 9 in all)"
    )
    assert in_short({"a": np.ones(3)}) == "{'a': array of shape (3,)}"
    assert in_short(object()) == "object(...)" and in_short(np.mean) == "mean"
    assert in_short("x" * 999) == "'" + "x" * 119 + "..."


def test_table_as_text_and_html():
    table = Table("Title", [("a<b", "1.5"), ("c", "12")], ("name", "number"), ["Note"])
    assert table.text().splitlines() == ["Title", "name  number", "a<b      1.5", "c         12", "Note"]  # fmt: skip
    assert "a&lt;b" in table.html() and table.html().count("<tr>") == 3


def test_dataclasses_stay_what_they_are(light):
    forecast = next(v for v in light if isinstance(v, dp.planning.Forecast))
    for again in (pickle.loads(pickle.dumps(forecast)), copy.copy(forecast)):
        assert again == forecast and hash(again) == hash(forecast) and repr(again) == repr(forecast)
    assert dataclasses.replace(forecast, draws=3.0) != forecast
    assert one_line(forecast) == "Forecast(draws=1, effective_draws=2, clipped=0.1, bias=0.2)"
