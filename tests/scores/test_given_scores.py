"""What scores are given back to: the likelihood that they are derivatives of, under a proper prior."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.fingerprint import fingerprint
from pymc_dp.model.proper_priors import check_proper

RNG = np.random.default_rng(1)
X, GROUP = RNG.normal(size=(400, 2)), np.tile([0, 1, 2], 134)[:400]
Y = RNG.integers(0, 2, size=400)


def regression(link="logit", x=X, y=Y, name="x", prior=pm.Normal, constant=False, **data):
    """A logistic or probit regression with two coefficients."""
    with pm.Model() as model:
        design = x if constant else pm.Data(name, x)
        beta = prior("beta", shape=2, **data)
        inverse = {"logit": pm.math.sigmoid, "probit": pm.math.invprobit, "cloglog": lambda t: 1 - pm.math.exp(-pm.math.exp(t))}  # fmt: skip
        pm.Bernoulli("y", p=inverse[link](design @ beta), observed=y)
    return model


def of(model, **options):
    return dp.model.RecordLikelihood(model, **options).fingerprint


def of_mean(mean, scale=1.0, distribution=pm.Normal):
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b", shape=3)
        options = {"nu": 3.0} if distribution is pm.StudentT else {}
        place = {"b" if distribution is pm.Laplace else "sigma": scale}
        distribution("y", mu=mean(a, b), observed=X[:, 0], **options, **place)
    return model


LINES = {
    "logit": (regression, "5f52"),
    "probit": (lambda: regression("probit"), "e4a9"),
    "group means": (lambda: of_mean(lambda a, b: a + b[GROUP]), "a931"),
    "slopes": (lambda: of_mean(lambda a, b: a * X[:, 1] + b[GROUP]), "beaa"),
    "student": (lambda: of_mean(lambda a, b: a + b[GROUP], distribution=pm.StudentT), "d069"),
}


@pytest.mark.parametrize("name", LINES)
def test_line_11_fingerprints_are_those_of_all_versions(name):
    """Of PyMC 5 and 6, in other processes: texts that are kept here."""
    make, kept = LINES[name]
    assert of(make())[:4] == kept


def test_line_11_data_priors_and_names_do_not_count():
    """Nor numbers: of the fingerprint that is published, nothing comes from data."""
    wanted = of(regression())
    other = RNG.normal(size=(90, 2))
    frame = {"x": np.ones((90, 2), dtype=np.float32), "y": np.zeros(90, dtype=bool)}
    for model in (
        regression(x=other, y=Y[:90]), regression(**frame), regression(x=np.ones((70, 2), int), y=Y[:70]),
        regression(name="columns"), regression(constant=True), regression(prior=pm.StudentT, nu=3.0),
        regression(sigma=100.0),
    ):  # fmt: skip
        assert of(model) == wanted
    assert of(regression(), public=["x"]) == of(regression(constant=True), public=[X]) == wanted
    with pm.Model() as blocks:
        beta, outcome = pm.Normal("beta", shape=2), pm.Data("outcome", np.zeros(1, int))
        pm.Bernoulli(
            "y", p=pm.math.sigmoid(pm.Data("x", np.zeros((1, 2))) @ beta), observed=outcome
        )
    blocks = dp.Simulator(blocks, data=dp.Records({"x": X, "outcome": Y}), covariates="public")
    assert blocks.likelihood.fingerprint == wanted
    one, two = (of(of_mean(lambda a, b: a + b[GROUP], scale)) for scale in (1.0, 2.0))
    assert one == two


def test_line_11_likelihoods_differ():
    means = (
        lambda a, b: a + b[GROUP], lambda a, b: b[GROUP], lambda a, b: a * b[GROUP], lambda a, b: pt.exp(a) + b[GROUP],
        lambda a, b: a * X[:, 1] + b[GROUP], lambda a, b: a - b[GROUP] ** 2,
    )  # fmt: skip
    models = [of_mean(mean) for mean in means]
    models += [of_mean(means[0], distribution=pm.Laplace), of_mean(means[0], distribution=pm.StudentT)]  # fmt: skip
    models += [regression(), regression("probit"), regression("cloglog")]
    assert len({of(model) for model in models}) == len(models)
    a, b = pt.scalar("a"), pt.scalar("b")
    assert fingerprint([a - b], [a, b]) == fingerprint([-1.0 * b + a], [a, b])
    assert fingerprint([a / b], [a, b]) == fingerprint([a * pt.reciprocal(b)], [a, b])
    assert fingerprint([a / b], [a, b]) != fingerprint([b / a], [a, b])


@pytest.fixture(scope="module")
def scores():
    budget = dp.PrivacyBudget(1.0, 1e-6, chains=1)
    return dp.private_scores(model=regression(), covariates="public", budget=budget)


def test_line_11_scores_of_another_likelihood_are_refused(scores, tmp_path):
    """A probit model on a logit model's scores: wherever they are given back, also from a file."""
    scores.save(tmp_path / "scores.json")
    read = dp.PrivateScores.load(tmp_path / "scores.json")
    probit = dp.Simulator(regression("probit"), covariates="public")
    for given in (scores, read):
        for use in (
            lambda s: dp.DPScore(s, simulator=probit),
            lambda s: dp.DPScore(s, model=regression("probit"), covariates="public"),
            lambda s: dp.scores.check_fit(s, probit),
            lambda s: dp.private_ppc(s, simulator=probit, statistics=["mean"], budget=dp.PrivacyBudget(1.0, 1e-6, chains=1)),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="another log-likelihood"):
                use(given)
    stand_in = regression(x=RNG.normal(size=(400, 2)), prior=pm.StudentT, nu=4.0)
    assert dp.DPScore(read, model=stand_in, covariates="public").scores is read


def improper():
    """Models whose prior has no finite integral, and a part of the message."""
    w = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])

    def with_prior(make):
        with pm.Model() as model:
            mu = make()
            pm.Normal("y", mu[0] if mu.ndim else mu, 1.0, observed=X[:, 0])
        return model

    def kept(flat):
        pm.Potential("p", -(flat**2))
        return flat

    yield (
        with_prior(lambda: pm.Flat("mu")),
        r"'mu' is improper \(it has a pm.Flat\).*pm.Normal\('mu', 0, s\)",
    )
    yield with_prior(lambda: pm.Flat("mu", shape=3)), "pm.Flat"
    yield with_prior(lambda: pm.HalfFlat("mu")), r"pm.HalfNormal\('mu', s\)"
    yield (
        with_prior(lambda: pm.GaussianRandomWalk("mu", 0, 1, init_dist=pm.Flat.dist(), steps=4)),
        "pm.Flat",
    )
    yield with_prior(lambda: pm.CustomDist("mu", logp=lambda v: pt.zeros_like(v))), "constant"
    yield (
        with_prior(lambda: pm.CustomDist("mu", dist=lambda size: pm.Flat.dist(size=size))),
        "pm.Flat",
    )
    yield with_prior(lambda: pm.ICAR("mu", W=w)), "2 parts"
    yield with_prior(lambda: kept(pm.Flat("mu"))), "pm.Flat"


def proper():
    w = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    with pm.Model() as model:
        pm.ICAR("icar", W=w)
        pm.GaussianRandomWalk("walk", 0, 1, init_dist=pm.Normal.dist(), steps=4)
        pm.CustomDist("custom", logp=lambda v: -(v**2))
        pm.Uniform("uniform", 0, 1)
    return model


def test_line_10_improper_priors_are_refused(monkeypatch):
    """Before anything is compiled or spent, naming the variable and what to write."""
    check_proper(proper())
    monkeypatch.setattr(dp.model.RecordLikelihood, "__init__", None)  # nothing is compiled
    for model, match in improper():
        budget = dp.PrivacyBudget(1.0, 1e-6, chains=1)
        for use in (
            lambda m: dp.plan(epsilon=1.0, delta=1e-6, model=m),
            lambda m: dp.sample(epsilon=1.0, delta=1e-6, model=m),
            lambda m, b=budget: dp.private_scores(model=m, budget=b),
        ):
            with pytest.raises(UnsupportedModel, match=match):
                use(model)
        assert budget.spent() == 0


def test_line_10_scores_do_not_repair_an_improper_prior(scores):
    with pytest.raises(UnsupportedModel, match="'beta' is improper"):
        dp.DPScore(scores, model=regression(prior=pm.Flat), covariates="public")


def test_line_10_samplers_that_pay_for_each_draw_keep_improper_priors():
    with pm.Model():
        pm.Normal("y", pm.Flat("mu"), 1.0, observed=X[:, 0])
        budget = dp.PrivacyBudget(1.0, 1e-6, chains=1)
        dp.DPPenalty(budget=budget, clip_bound=3.0, proposal=dp.RandomWalk(0.02))
