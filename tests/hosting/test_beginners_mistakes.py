"""Mistakes that newcomers make: each is refused with what was found and what to do, before anything is spent."""

import contextlib
import functools
import math
import re

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp

from pymc_dp.errors import LedgerError, PrivacyLeak
from pymc_dp.scores import score_plan

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore:fit check"),  # of chains that hardly warm up
]

N = 40
RNG = np.random.default_rng(1)
#: Values that no message may show.
X = np.column_stack([np.ones(N), 1000 + 0.123456789 * np.arange(N)])
Y = (RNG.random(N) < 0.5).astype(int)
AGE = {"age": RNG.uniform(20, 60, N)}
START = dp.scores.PrivateStart({}, np.zeros(2), np.eye(2))
WARDS = np.array(["north", "south"] * (N // 2))
TERMS = {"epsilon": 1.0, "delta": 1e-6}
QUIET = {"progressbar": False, "cores": 1}


def logistic(x=None, y=Y):
    x = (X - [0, 1000]) if x is None else x
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=x @ beta, observed=y)
    return model


def with_covariate():
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * pm.Data("x", X[:, 1] - 1000), 1, observed=np.zeros(N))
    return model


class World:
    """What a newcomer has; each call makes a budget on the account of the test."""

    def __init__(self):
        self.model = logistic()
        self.simulator = dp.Simulator(self.model, covariates="public")
        budget = dp.PrivacyBudget(**TERMS, chains=1)
        self.scores = dp.private_scores(self.simulator, budget=budget, random_seed=1)
        step = dp.DPScore(self.scores, simulator=self.simulator)
        quick = {"draws": 20, "chains": 1, "compute_convergence_checks": False}
        self.released = dp.sample(step=step, **quick, **QUIET)
        self.prior = pm.sample_prior_predictive(5, model=self.model, random_seed=1)
        self.ledger: dp.Ledger

    def budget(self, **given):
        return dp.PrivacyBudget(**(TERMS | {"chains": 2, "ledger": self.ledger} | given))

    def sample(self, **given):
        """With a budget."""
        return dp.sample(**(TERMS | {"simulator": self.simulator, "ledger": self.ledger} | QUIET | given))  # fmt: skip

    def of_model(self, **given):
        """The same, without a simulator."""
        known = {"model": self.model, "covariates": "public", "ledger": self.ledger}
        return dp.sample(**(TERMS | known | QUIET | given))

    def step(self, **given):
        settings = {"clip_bound": 0.5, "proposal": dp.RandomWalk(0.05), "noise_scale": 2.0}
        known = {"model": self.model, "likelihood": self.simulator.likelihood}
        return dp.DPPenalty(**({"budget": self.budget()} | settings | known | given))

    def run(self, **given):
        """A step that pays for each draw."""
        return dp.sample(**({"step": self.step()} | QUIET | given))

    def by_pymc(self, **given):
        """The same by pm.sample."""
        step = given.pop("step", None) or self.step()
        known = {"draws": 5, "tune": 0, "chains": 2, "callback": getattr(step, "budget", None)}
        return pm.sample(**({"step": step, "model": self.model} | known | QUIET | given))

    def plan(self, **given):
        return dp.plan(**(TERMS | {"simulator": self.simulator, "ledger": self.ledger} | given))

    def plan_of_step(self, **given):
        """On a budget."""
        known = {"budget": self.budget(), "simulator": self.simulator, "step": dp.DPPenalty}
        return dp.plan(**(known | given))

    def private_scores(self, *unnamed, **given):
        known = {"budget": self.budget(chains=1)} | ({} if unnamed else {"simulator": self.simulator})  # fmt: skip
        return dp.private_scores(*unnamed, **(known | given))

    def sum(self, function=lambda age: age, data=AGE, **given):
        known = {"bound": 41, "centre": 59, "budget": self.budget(chains=1)}
        return dp.private_sum(function, data, **(known | given))

    def counts(self, edges, **given):
        return dp.private_counts(lambda age: age, AGE, edges=edges, **({"budget": self.budget(chains=1)} | given))  # fmt: skip

    def ppc(self, released=None, **given):
        known = {"simulator": self.simulator, "statistics": ["mean"], "budget": self.budget(chains=1)}  # fmt: skip
        return dp.private_ppc(self.scores if released is None else released, **(known | given))

    def compare(self, released=None, models=None, **given):
        released = released or {"a": self.released, "b": self.released}
        models = models or {"a": self.simulator, "b": self.simulator}
        return dp.private_compare(released, models, **({"budget": self.budget(chains=1)} | given))

    def after_set_data(self, run):
        """Compile the model, replace its data, then run."""
        model = with_covariate()
        compiled = dp.Simulator(model, covariates="public")
        plan = dp.plan(**TERMS, simulator=compiled, ledger=self.ledger)
        step = self.step(model=model, likelihood=compiled.likelihood)
        pm.set_data({"x": np.zeros(N)}, model=model)
        return run(self, SimpleNamespace(model=model, simulator=compiled, plan=plan, step=step))


#: The mistake, the type of the error, and what its message states.
TERMS_AND_MODEL = {
    "epsilon without name": (lambda w: dp.sample(1.0, 1e-6), TypeError, r"2 argument\(s\) without a name.*epsilon=1\.0"),
    "model without name": (lambda w: dp.sample(w.model, **TERMS), TypeError, "1 argument.*model=model"),
    "scores: model without name": (lambda w: w.private_scores(w.model), TypeError, "pass a model as model="),
    "nothing": (lambda w: dp.sample(model=w.model), TypeError, "exactly one of plan=.*step=.*epsilon="),
    "epsilon only": (lambda w: dp.sample(epsilon=1.0, model=w.model), TypeError, "both epsilon= and delta="),
    "epsilon as text": (lambda w: w.sample(epsilon="1"), ValueError, "epsilon must be positive.*got '1'"),
    "epsilon and delta exchanged": (lambda w: w.sample(epsilon=1e-6, delta=1.0), ValueError, r"delta must be .* got 1\.0.*below 1 / \(number of records\)"),
    "plan and epsilon": (lambda w: w.sample(plan=w.plan()), TypeError, "exactly one of plan="),
    "plan and data": (lambda w: dp.sample(plan=w.plan(), data=dp.Records(AGE)), TypeError, "data"),
    "plan as text": (lambda w: dp.sample(plan="plan"), TypeError, r"as plan\(\) returns it, got a str"),
    "budget": (lambda w: w.sample(budget=w.budget()), TypeError, r"budget: .*from epsilon= and delta=: leave out.*plan\(budget=budget"),
    "no model": (lambda w: dp.sample(**TERMS), TypeError, "no model: pass model=model, or .*with model:"),
    "model by name": (lambda w: dp.sample(**TERMS, model="model"), TypeError, "must be a pm.Model, got a str"),
    "model without data": (lambda w: dp.sample(**TERMS, model=pm.Model()), dp.UnsupportedModel, "no observed variables.*observed="),
    "model as simulator": (lambda w: w.sample(simulator=w.model), TypeError, "got a Model: pass a model as model="),
    "adjacency": (lambda w: w.sample(adjacency="replace", ledger=None), ValueError, "choose 'substitute' or 'add_remove'"),
    "accountant": (lambda w: w.sample(accountant="renyi"), ValueError, "choose one of best, pure, rdp"),
    "noise": (lambda w: w.sample(noise="laplace"), ValueError, "'auto', 'gaussian' or 'l2', got 'laplace'"),
    "no protection, no draws": (lambda w: w.run(step=w.step(budget=w.budget(epsilon=math.inf, ledger=None))), ValueError, "give draws"),
    "ledger: adjacency": (lambda w: dp.Ledger(**TERMS, adjacency="swap"), ValueError, "adjacency must be .* got 'swap'"),
    "budget: adjacency": (lambda w: w.budget(adjacency="add"), ValueError, "'substitute' or 'add_remove'"),
    "budget: adjacency of the account": (lambda w: w.budget(adjacency="add_remove"), LedgerError, "opened with adjacency = substitute, not add_remove"),
    "budget above the account": (lambda w: w.budget(epsilon=2.0), LedgerError, "epsilon = 2 exceeds the account .* epsilon = 1"),
}  # fmt: skip
DATA = {
    "covariates not declared": (lambda w: w.of_model(covariates=None), ValueError, r'dp\.Ranges\(.*covariates="public"; or covariates=stand_in_model'),
    "covariates=True": (lambda w: w.of_model(covariates=True), ValueError, 'must be "public".* got a bool'),
    "covariates as a word": (lambda w: w.of_model(covariates="private"), ValueError, 'must be "public".* or covariates=stand_in_model'),
    "covariates as an array": (lambda w: w.of_model(covariates=X), ValueError, r"Ranges\(.*got a ndarray"),
    "ranges of no pm.Data": (lambda w: w.of_model(covariates=dp.Ranges(x=(0, 1))), ValueError, r"pm.Data\(name, array\)"),
    "records as text": (lambda w: w.of_model(records=WARDS), ValueError, r"must be integers.* type <U5: .*pd\.factorize\("),
    "records and a stand-in": (lambda w: w.of_model(records=np.arange(N) // 2, covariates=w.model), ValueError, "stand_in_records="),
    "records too short": (lambda w: w.of_model(records=np.arange(N - 1)), ValueError, r"one label per row, shape \(40,\), not \(39,\)"),
    "records of an unknown variable": (lambda w: w.of_model(records={"z": np.arange(N)}), ValueError, r"keys \['y'\].*not \['z'\]"),
    "public as text": (lambda w: w.of_model(public="x"), ValueError, "got a single str: pass a list"),
    "missing outcome": (lambda w: w.of_model(model=incomplete_outcome(), covariates=None), dp.UnsupportedModel, "missing observations.*Drop incomplete records"),
    "NaN in a public covariate": (lambda w: w.of_model(model=incomplete_covariate()), dp.UnsupportedModel, r"without missing.*Not finite: height of shape \(40,\)\.$"),
    "set_data, then a step": (lambda w: w.after_set_data(lambda w, c: w.run(step=c.step)), ValueError, r"replaced 'x' .*again after pm\.set_data"),
    "set_data, then a step by PyMC": (lambda w: w.after_set_data(lambda w, c: w.by_pymc(step=c.step, model=c.model)), ValueError, "replaced 'x'"),
    "set_data, then a plan": (lambda w: w.after_set_data(lambda w, c: dp.sample(plan=c.plan)), ValueError, "replaced 'x'"),
    "set_data, then a simulator": (lambda w: w.after_set_data(lambda w, c: w.sample(simulator=c.simulator)), ValueError, "replaced 'x'"),
    "ledger as a number": (lambda w: w.sample(ledger=3), TypeError, "path of a file, or a Ledger, got a int"),
    "ledger is a folder": (lambda w: w.sample(ledger="/"), LedgerError, "cannot be used"),
    "ledger: no terms": (lambda w: dp.Ledger("/none/such/a.ledger"), LedgerError, "There is no file.*give epsilon and delta"),
    "ledger: other terms": (lambda w: dp.Ledger(w.ledger.path, epsilon=9.0, delta=1e-6), LedgerError, r"opened with epsilon = 1\.0, not 9"),
    "ledger: composition": (lambda w: dp.Ledger(**TERMS, composition="renyi"), ValueError, "composition must be 'basic' or 'gaussian'"),
    "ledger: Gaussian DP of no delta": (lambda w: dp.Ledger(epsilon=1.0, delta=0.0, composition="gaussian"), ValueError, "needs delta > 0"),
    "ledger: other composition": (lambda w: dp.Ledger(w.ledger.path, composition="gaussian"), LedgerError, "opened with composition = basic"),
    "ledger: number as path": (lambda w: dp.Ledger(3, epsilon=1.0, delta=0), TypeError, "path must be that of a file"),
    "ledger: too much recorded": (lambda w: w.ledger.record(epsilon=3.0, note="ages"), dp.PrivacyBudgetExhausted, "allows epsilon = 1 .*Nothing was accessed"),
    "ledger: record without guarantee": (lambda w: w.ledger.record(note="ages"), ValueError, "exactly one of epsilon"),
    "ledger: record of two guarantees": (lambda w: w.ledger.record(epsilon=0.1, mu=0.1, note="ages"), ValueError, "exactly one of epsilon"),
    "ledger: record without note": (lambda w: w.ledger.record(epsilon=0.1, note=" "), ValueError, "note is empty"),
}  # fmt: skip
STEPS = {
    "class of NUTS": (lambda w: dp.sample(step=pm.NUTS, model=w.model), TypeError, "got the class NUTS.*without privacy: leave out step="),
    "a step of PyMC": (lambda w: dp.sample(step=metropolis()), TypeError, "got a Metropolis.*without privacy"),
    "class of a private step": (lambda w: dp.sample(step=dp.DPPenalty), TypeError, r"must be an instance: .*DPPenalty\(budget="),
    "list of steps": (lambda w: w.run(step=[w.step()]), TypeError, r"pm\.sample\(step=\["),
    "label of a step": (lambda w: (step := w.step()).budget.spend(step.label, ((dp.privacy.Gaussian(20.0), 1),)), ValueError, "is a step of this budget"),
    "step and guess": (lambda w: w.run(guess={"beta": [0, 0]}), TypeError, "guess: .*fixed already, leave out"),
    "step and chains": (lambda w: w.run(chains=4), TypeError, "budget of this sampler has a number of chains"),
    "more draws than paid for": (lambda w: w.run(draws=10**9), ValueError, "more than epsilon = 1 pays for.*Leave out draws="),
    "no settings": (lambda w: dp.DPPenalty(), TypeError, r"needs .*budget.*plan\(step=DPPenalty"),
    "no settings of HMC": (lambda w: dp.DPHMC(budget=None, model=w.model), TypeError, "DPHMC needs step_size, n_leapfrog,"),
    "no proposal": (lambda w: dp.DPFastMH(budget=None, clip_bound=1.0), TypeError, r"DPFastMH needs proposal; plan\(step=DPFastMH"),
    "number as budget": (lambda w: w.step(budget=1.0), TypeError, "budget must be a PrivacyBudget .*got float"),
    "scale as proposal": (lambda w: w.step(proposal=0.05), TypeError, r"such as RandomWalk\(0\.01\), got a float"),
    "class as proposal": (lambda w: w.step(proposal=dp.RandomWalk), TypeError, r"RandomWalk\(0\.01\), got"),
    "unknown setting": (lambda w: w.step(step_size=1), TypeError, "no argument step_size: leave out"),
    "vars by name": (lambda w: w.step(vars=["beta"]), TypeError, r"vars=\[model\['beta'\]\]"),
    "step without model": (lambda w: w.step(model=None, likelihood=None), TypeError, "no model: pass model=model"),
    "unknown mode": (lambda w: w.step(likelihood=None, compile_kwargs={"mode": "FAST"}), ValueError, "mode 'FAST'.*such as 'NUMBA'"),
    "another compiler": (lambda w: w.step(likelihood=None, compile_kwargs={"mode": "JAX"}), ValueError, r"mode 'JAX' \(JAXLinker\).*give 'NUMBA'"),
    "unknown option": (lambda w: w.step(likelihood=None, compile_kwargs={"foo": 1}), TypeError, "has foo, which pytensor.function does not have"),
    "options as text": (lambda w: w.of_model(compile_kwargs="FAST"), TypeError, r"compile_kwargs: .*Simulator\(model, compile_kwargs="),
    "batch too large": (lambda w: w.step(batch_size=1000), ValueError, "batch_size must be from 2 to .* 40, got 1000"),
    "plan: instance": (lambda w: w.plan(step=w.step()), ValueError, "one of the classes.*instance of DPPenalty, where a class is needed"),
    "plan: chains of scores": (lambda w: w.plan(chains=4), TypeError, r"chains are free \(give their numbers to sample"),
    "plan: step without plans": (lambda w: w.plan_of_step(step=dp.DPHMC), ValueError, r"DPFastMH, got DPHMC\..*by hand.*sample\(step="),
    "plan: step as a number": (lambda w: w.plan_of_step(step=3), ValueError, "got an instance of int"),
    "plan: batches, add/remove": (lambda w: w.plan_of_step(step=dp.DPFastMH, budget=w.budget(adjacency="add_remove", ledger=None)), ValueError, "proved for adjacency 'substitute', not 'add_remove'"),
    "plan: batches, Gaussian DP": (lambda w: w.plan_of_step(step=dp.DPFastMH, budget=w.budget(accountant="gaussian")), ValueError, "'gaussian' has no bound for the batches"),
    "plan: start and guess": (lambda w: w.plan_of_step(start=START, guess={"beta": [0, 0]}), TypeError, "start= or guess="),
    "plan: noise of a step": (lambda w: w.plan_of_step(noise="l2"), TypeError, "noise: DPPenalty has no use"),
    "plan: no terms": (lambda w: dp.plan(epsilon=1.0), TypeError, "epsilon= and delta=, or budget="),
    "plan: no delta": (lambda w: w.plan(delta=None), TypeError, "needs epsilon= and delta="),
    "plan: terms and budget": (lambda w: w.plan(budget=w.budget()), TypeError, "not both"),
    "plan: temperature of a simulator": (lambda w: w.plan(temperature=0.5), TypeError, "temperature are those"),
    "plan: public of a simulator": (lambda w: w.plan(public=["x"]), TypeError, "public are those"),
    "plan: draws of scores": (lambda w: w.plan(max_draws=50), TypeError, "max_draws: "),
    "plan: start of scores": (lambda w: w.plan(start=object()), TypeError, "start: "),
    "plan: accesses before scores": (lambda w: w.plan(other_accesses=[(dp.privacy.Gaussian(2.0), 1)]), TypeError, "other_accesses: "),
    "plan: seed": (lambda w: w.plan(random_seed="a"), ValueError, "random_seed must be .* got 'a'"),
    "pm.sample: more chains": (lambda w: w.by_pymc(chains=4), dp.PrivacyBudgetExhausted, r"shared over chains=2.*make a budget for as many"),
    "pm.sample: tuning": (lambda w: w.by_pymc(tune=1_000_000), dp.PrivacyBudgetExhausted, "pass tune=0.*Nothing was accessed"),
    "pm.sample: start outside of the prior": (lambda w: w.by_pymc(initvals={"beta": [math.nan, 0.0]}), ValueError, "prior is zero where a chain is to begin.*other initvals="),
    "scores: number": (lambda w: dp.DPScore(3, simulator=w.simulator), TypeError, r"as private_scores\(\) returns them, got a int"),
    "scores of another model": (lambda w: dp.DPScore(w.scores, covariates="public", model=with_covariate()), ValueError, r"with respect to beta\[2\], but the model has slope"),
}  # fmt: skip
STARTS = {
    "start as a dict": (lambda w: w.sample(start={"beta": [0, 0]}), TypeError, "Public values are guess="),
    "plan: start as a list": (lambda w: w.plan(step=dp.DPPenalty, start=[0, 0]), TypeError, "got a list: pass public values as guess=, a dict"),
    "guess as a list": (lambda w: w.sample(guess=[0, 0]), TypeError, r"guess must be a dict .*\{'beta': 0.0\}, got a list"),
    "guess as text": (lambda w: w.sample(guess="zero"), ValueError, "guess must be a dict .*or 'prior', got 'zero'"),
    "guess of other shape": (lambda w: w.sample(guess={"beta": [0, 0, 0]}), ValueError, r"guess of 'beta' has shape \(3,\), but .* shape \(2,\)"),
    "guess of other name": (lambda w: w.sample(guess={"b": 0}), ValueError, "no variables b, which are in guess: it has beta"),
    "guess not a number": (lambda w: w.sample(guess={"beta": "a"}), ValueError, "guess of 'beta' must be numbers.* got 'a'"),
    "initvals of scores": (lambda w: w.sample(initvals={"beta": [0, 0]}), TypeError, "leave out initvals="),
    "initvals of other shape": (lambda w: w.run(initvals={"beta": [0, 0, 0]}), ValueError, r"initvals of 'beta' has shape \(3,\).* shape \(2,\)"),
    "initvals for each chain in one": (lambda w: w.run(initvals={"beta": [[0, 0]] * 2}), ValueError, r"shape \(2, 2\)"),
    "initvals as a list": (lambda w: w.run(initvals=[0, 0]), TypeError, "initvals must be a dict .*got a int"),
    "initvals of other name": (lambda w: w.run(initvals={"b": 0.0}), ValueError, "no variables b, .*it has beta"),
    "initvals not a number": (lambda w: w.run(initvals={"beta": "a"}), ValueError, "initvals of 'beta' must be numbers"),
    "initvals of too many chains": (lambda w: w.run(initvals=[{"beta": [0, 0]}] * 3), ValueError, r"3 dict\(s\) for 2 chain\(s\): give one"),
    "initvals without density": (lambda w: w.run(initvals=[{"beta": [0, 0]}, {"beta": [math.inf, 0]}]), ValueError, "prior is zero where a chain is to begin"),
}  # fmt: skip
OF_PYMC = {
    "nuts_sampler": ({"nuts_sampler": "numpyro"}, TypeError, "nuts_sampler: it is for NUTS.*leave out"),
    "init": ({"init": "adapt_diag"}, TypeError, "init: it is for NUTS.*leave out"),
    "target_accept": ({"target_accept": 0.9}, TypeError, "target_accept: it is for NUTS.*leave out"),
    "tune": ({"tune": 1000}, TypeError, "tune: private steps do not adapt.*leave out"),
    "callback": ({"callback": print}, TypeError, "callback: sample.. sets it.*leave out"),
    "return_inferencedata": ({"return_inferencedata": False}, TypeError, "what release.. returns: leave out"),
    "typing error": ({"drws": 10}, TypeError, "no argument drws: leave out, or did you mean draws=?"),
    "setting of a step": ({"clip_bound": 2.0}, TypeError, r"no argument clip_bound.*DPPenalty\("),
    "progressbar": ({"progressbar": "splt"}, ValueError, "progressbar must be True, False or one of 'combined'.* got 'splt'"),
    "progressbar_theme": ({"progressbar_theme": 3}, TypeError, "rich.theme.Theme, got a int"),
    "mp_ctx": ({"mp_ctx": "thread"}, ValueError, "mp_ctx must be one of .*'spawn'.* got 'thread'"),
    "blas_cores": ({"blas_cores": "all"}, TypeError, "blas_cores must be .*'auto' or None, got 'all'"),
    "cores as text": ({"cores": "two"}, TypeError, "cores must be a whole number, got 'two'"),
    "compile_kwargs": ({"compile_kwargs": {"mode": "FAST"}}, TypeError, "compile_kwargs: .*give it to the step or to Simulator"),
    "idata_kwargs": ({"idata_kwargs": {"log_likelihood": True}}, TypeError, "reduced to what may be published.*coords="),
    "quiet": ({"quiet": "yes"}, TypeError, "quiet must be True or False, got 'yes'"),
    "random_seed": ({"random_seed": "a"}, ValueError, "random_seed must be .* got 'a'"),
    "random_seed of old NumPy": ({"random_seed": np.random.RandomState(1)}, ValueError, "random_seed must be .*or a Generator"),
    "backend": ({"backend": "nope"}, TypeError, "backend: the step is compiled already: leave out"),
    "var_names as text": ({"var_names": "beta"}, TypeError, "got 'beta': put it in a list"),
    "var_names unknown": ({"var_names": ["gamma"]}, ValueError, "no variables gamma, which are in var_names: it has beta"),
    "var_names twice": ({"var_names": ["beta", "beta"]}, ValueError, "distinct names"),
    "trace": ({"trace": "sqlite"}, TypeError, "trace must be one of PyMC's, got a str"),
    "share": ({"share": 0.1}, TypeError, "share: "),
    "reproducible": ({"reproducible": True}, TypeError, "always secret|argument of the step"),
    "no cores": ({"cores": 0}, ValueError, "cores"),
    "draws as a float": ({"draws": 1e3}, TypeError, r"draws must be a whole number, got 1000\.0: give an integer"),
}  # fmt: skip
RESULTS = {
    "chains as text": (lambda w: w.sample(chains="4"), TypeError, "chains must be a whole number"),
    "draws beyond memory": (lambda w: w.sample(draws=10**15), ValueError, "do not fit into memory: ask for fewer"),
    "release: no result": (lambda w: dp.release(None, w.model, w.budget()), TypeError, "result of pm.sample or sample.., got a NoneType"),
    "release: nothing else": (lambda w: dp.release(w.prior), ValueError, "no privacy report"),
    "release: no budget": (lambda w: dp.release(w.prior, w.model), PrivacyLeak, "without a budget"),
    "release: no model": (lambda w: dp.release(w.prior, budget=w.budget()), ValueError, "Give the model that was sampled"),
    "release: exchanged": (lambda w: dp.release(w.prior, w.budget(), w.model), TypeError, "budget must be a PrivacyBudget.* got a Model"),
    "release: prior": (lambda w: dp.release(w.prior, w.model, w.budget()), ValueError, "no group 'sample_stats'"),
    "release: twice": (lambda w: dp.release(w.released, w.model, w.budget()), ValueError, "released already"),
    "report of a prior": (lambda w: dp.PrivacyReport.of(w.prior), ValueError, "no privacy report"),
    "scores of nothing": (lambda w: dp.PrivateScores.of(None), ValueError, "There are no scores"),
    "scores from another file": (lambda w: dp.PrivateScores.load(__file__), ValueError, "holds no scores: .*PrivateScores.save"),
    "sum: function by name": (lambda w: w.sum("age"), TypeError, "such as lambda age: age, got a str"),
    "sum: other argument": (lambda w: w.sum(lambda a: a), ValueError, "argument 'a', but the columns are age"),
    "sum: array from outside": (lambda w: w.sum(lambda age: age - AGE["age"]), dp.UnsupportedModel, "public={name: array}"),
    "sum: an array of other length": (lambda w: w.sum(lambda age: (age > pt.constant([0.1, 0.7, 0.3])).sum()), dp.UnsupportedModel, "public="),
    "sum: of no data": (lambda w: w.sum(lambda age: pt.constant(1.0)), dp.UnsupportedModel, "does not depend on the data"),
    "sum: no argument": (lambda w: w.sum(lambda: 1.0), ValueError, "no column"),
    "sum: of matrices": (lambda w: w.sum(lambda z: pt.outer(z, z), {"z": X}), dp.UnsupportedModel, r"not an array of shape \(2, 2\)"),
    "sum: too little epsilon": (lambda w: w.sum(budget=w.budget(epsilon=1e-7, delta=0)), ValueError, "too much for sums.*Nothing was accessed"),
    "sum: too little epsilon for a box": (lambda w: w.sum(lambda age: [age, -age], bound=[9, 9], centre=0, budget=w.budget(epsilon=1e-7, delta=0)), ValueError, "too much for sums"),
    "counts: too little epsilon": (lambda w: w.counts([40], budget=w.budget(epsilon=1e-7, delta=0)), ValueError, "too much for sums"),
    "sum: an array as data": (lambda w: w.sum(data=AGE["age"]), TypeError, "as a dict or a DataFrame does, got ndarray"),
    "sum: text as data": (lambda w: w.sum(data={"age": WARDS}), ValueError, r"must be numbers.*categories=\[\.\.\.\]\)\.codes"),
    "sum: negative bound": (lambda w: w.sum(bound=-1), ValueError, "bound positive and finite"),
    "sum: bound of other shape": (lambda w: w.sum(bound=[1, 2]), ValueError, r"its shape is \(2,\)"),
    "sum: no centre": (lambda w: w.sum(centre=math.nan), ValueError, "centre must be finite"),
    "sum: noise": (lambda w: w.sum(noise="laplace"), ValueError, "noise must be"),
    "sum: units": (lambda w: w.sum(records=np.zeros(3, int)), ValueError, "one label per row"),
    "sum: data that are public": (lambda w: w.sum(public={"age": 1}), ValueError, "both data and public"),
    "sum: other lengths": (lambda w: w.sum(data=AGE | {"y": np.zeros(4)}), ValueError, "same number of rows"),
    "counts: number of bins": (lambda w: w.counts(5), ValueError, r"such as \[30, 40, 50\], got 5"),
    "counts: descending": (lambda w: w.counts([40, 30]), ValueError, "finite and ascending"),
    "counts: equal edges": (lambda w: w.counts([40, 40]), ValueError, "edges must"),
    "counts: edges of two": (lambda w: dp.private_counts(lambda age: [age] * 3, AGE, edges=[[30], [40]], budget=w.budget(chains=1)), ValueError, "edges must"),
    "ranges: none": (lambda w: dp.Ranges(), ValueError, r"such as Ranges\(age=\(18, 100\)\)"),
    "ranges: descending": (lambda w: dp.Ranges(age=(100, 18)), ValueError, "age must be a range .*low < high"),
    "ranges: letters": (lambda w: dp.Ranges(sex="fm"), ValueError, "list of two or more different categories, got 'fm'"),
    "ppc: statistic": (lambda w: w.ppc(statistics=["median"]), ValueError, "statistics are mean.* got 'median'"),
    "ppc: no result": (lambda w: w.ppc(w.prior), ValueError, "There are no scores"),
    "compare: lists": (lambda w: w.compare([w.released], [w.model]), TypeError, "must map names of models to them"),
    "compare: one model": (lambda w: w.compare({"a": w.released}, {"a": w.model}), ValueError, "two or more"),
    "compare: model by name": (lambda w: w.compare(models={"a": "a", "b": "b"}), TypeError, "must be a pm.Model or a Simulator, got str"),
    "compare: the same": (lambda w: w.compare(), ValueError, "nothing to compare"),
    "compare: scores": (lambda w: w.compare({"a": w.scores, "b": w.scores}), TypeError, "result of pm.sample or sample.., got a PrivateScores"),
    "plot: plan of scores": (lambda w: dp.plots.plot_plan(w.plan()), TypeError, "got a ScorePlan: print the plan"),
    "plot: result": (lambda w: dp.plots.plot_ppc(w.released), TypeError, r"what private_ppc\(\) returns"),
}  # fmt: skip
#: They build a sampler before.
SLOW = {"ppc: statistic", "draws beyond memory", "set_data, then a step by PyMC"}
ALL = TERMS_AND_MODEL | DATA | STEPS | STARTS | RESULTS


def incomplete_outcome():
    with pm.Model() as model, pytest.warns(Warning, match="imputed|missing|masked"):
        pm.Normal("y", pm.Normal("b", 0, 1), 1, observed=np.where(np.arange(N) == 3, np.nan, Y))
    return model


def incomplete_covariate():
    height = pt.constant(np.where(np.arange(N) == 3, np.nan, 1.0), name="height")
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=height * pm.Normal("beta", 0, 1), observed=Y)
    return model


def metropolis():
    return object.__new__(pm.Metropolis)


@pytest.fixture(scope="module")
def world(quick_scores):
    return World()


@pytest.fixture
def w(world, tmp_path, monkeypatch):
    """With an account of its own; nothing may be claimed on it, or on any other one."""
    world.ledger = dp.Ledger(tmp_path / "data.ledger", **TERMS)
    claims, claim = [], dp.Ledger.claim

    def noted(self, *args, **kwargs):
        before = claim(self, *args, **kwargs)
        claims.append(args[1])
        return before

    monkeypatch.setattr(dp.Ledger, "claim", noted)
    yield world
    assert claims == [] and world.ledger.claims() == [] and world.ledger.spent() == 0


@contextlib.contextmanager
def refused(error, match):
    """With this message, raised by the package, which shows none of the data."""
    with pytest.raises(error) as caught:
        yield
    text = str(caught.value)
    assert re.search(match, text), text
    assert not re.search(r"\d\.1234567|1000\.\d", text.replace("got 1000.0", ""))
    assert len(text) < 700


def _listed():
    return [pytest.param(m, marks=pytest.mark.slow) if m in SLOW else m for m in ALL]


@pytest.mark.parametrize("mistake", _listed())
def test_a_mistake_costs_nothing(mistake, w):
    do, error, match = ALL[mistake]
    with refused(error, match):
        do(w)


@pytest.mark.parametrize("how", ["scores", "step"])
@pytest.mark.parametrize("mistake", OF_PYMC)
def test_an_argument_of_pymc_costs_nothing(mistake, how, w):
    """PyMC would refuse it when sampling begins, after the releases, or would ignore it."""
    given, error, match = OF_PYMC[mistake]
    with refused(error, match):
        (w.sample if how == "scores" else w.run)(**given)


@pytest.mark.slow
def test_impossible_values_are_no_error(world):
    """Whether private data have them is private: such a record counts by a fixed rule, and the run is the same."""
    y = Y.copy()
    y[3] = 2  # in a Bernoulli
    x = X - [0, 1000]
    x[3, 1] = np.nan
    plans = []
    for model in (world.model, logistic(y=y), logistic(x=x)):
        simulator = dp.Simulator(model, covariates=world.model)
        plan = dp.plan(**TERMS, simulator=simulator, random_seed=1)
        plans.append(str(plan))
        scores = plan.release()
        assert np.isfinite(scores.releases[-1].total).all()
    assert plans[0] == plans[1] == plans[2]


class TestWhatIsLeft:
    """An error after a release states what was spent, and gives what was released."""

    def broken(self, world, monkeypatch, ledger):
        def fails(*args, **kwargs):
            raise np.linalg.LinAlgError("Singular matrix")

        plan = dp.plan(**TERMS, simulator=world.simulator, random_seed=1, ledger=ledger)
        monkeypatch.setattr(score_plan, "released_sum", fails)
        with pytest.raises(np.linalg.LinAlgError) as caught:
            dp.sample(plan=plan, **QUIET)
        return caught.value

    def check(self, error, ledger):
        assert error.budget.spent() == pytest.approx(1.0, rel=0.02)
        assert 1.0 <= ledger.spent() <= 4.0  # added up one by one, an account counts more
        (note,) = error.__notes__
        assert re.match(
            r"Spent: epsilon = (1|0\.99\d*) of 1 of this budget \(error\.budget\), and .* of 4 of the account",
            note,
        )
        return note

    @pytest.fixture
    def ledger(self, tmp_path):
        return dp.Ledger(tmp_path / "a.ledger", epsilon=4.0, delta=1e-6)

    def test_the_plan_collapses_before_the_first_sum(self, world, monkeypatch, ledger):
        error = self.broken(world, monkeypatch, ledger)
        assert error.scores is None
        assert "needs a new PrivacyBudget" in self.check(error, ledger)

    def test_the_plan_collapses_after_a_sum(self, world, monkeypatch, ledger):
        """Of two sums, the first one is returned."""
        one = score_plan.released_sum

        def two(plan, releases):
            plan._spend("scores", ((plan.design.main, 1),))
            settings = plan.simulator, plan.simulated, plan.design.main, plan.budget.adjacency
            releases.append(one(*settings))
            score_plan.released_sum(*settings)

        monkeypatch.setattr(dp.scores.ScorePlan, "_release_sums", two)
        error = self.broken(world, monkeypatch, ledger)
        assert "dp.DPScore(error.scores" in self.check(error, ledger)
        dp.DPScore(error.scores, simulator=world.simulator)

    def test_pymc_refuses(self, world, monkeypatch, ledger):
        @functools.wraps(pm.sample)
        def refuses(*args, **kwargs):
            raise ValueError("no")

        monkeypatch.setattr(pm, "sample", refuses)
        with pytest.raises(ValueError, match="no") as caught:
            dp.sample(**TERMS, simulator=world.simulator, ledger=ledger, random_seed=1)
        assert "dp.DPScore(error.scores" in self.check(caught.value, ledger)
        world.ledger = ledger
        budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=1, ledger=ledger)
        with pytest.raises(ValueError, match="no") as caught:
            dp.sample(step=world.step(budget=budget), **QUIET)
        assert not hasattr(caught.value, "__notes__") and budget.spent() == 0

    def test_a_chain_fails(self, world, monkeypatch, ledger):
        def fails(*args):
            raise RuntimeError("no")

        monkeypatch.setattr(dp.DPPenalty, "transition", fails)
        budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=1, ledger=ledger)
        with pytest.raises(RuntimeError, match="no") as caught:
            dp.sample(step=world.step(budget=budget), **QUIET)
        assert "needs a new PrivacyBudget" in self.check(caught.value, ledger)
