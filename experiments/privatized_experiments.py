"""The experiments of Ju, Gong, Awan and Rao on inference from privatized data, with our sampler: docs/privatized.md.

N. Ju, J. A. Awan, R. Gong and V. A. Rao, *Data augmentation MCMC for Bayesian inference from privatized data* (NeurIPS
2022): posterior means, acceptance rates and the coverage of intervals, for a naive Bayes log-linear model (section 4) and
a linear regression (section 5 and supplement). The true probabilities of answers in the log-linear model are the authors'
(the key ``pijk`` of their file); ``--small`` draws them from the prior. Coverage of 90 % intervals in the paper, from 100
replicates (Table 1, and that of the supplement), is stored as ``published``.

As in the paper a chain has 10 000 iterations, of which the second half is used; an iteration is a sweep over all records
and a draw of the parameters from their conjugate distribution, which is a few lines of NumPy here; in the notebooks NUTS
does it.
"""

import json
import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from runner import Experiment, Options, Stored, table

import pymc_dp as dp

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
REPLICATES, REPEATS, ITERATIONS = 100, 30, 10_000


class LogLinear:
    """Answers to K questions given a class; the released table counts classes and answers."""

    n, classes, questions, answers = 100, 5, 5, 3
    truth = np.array([0.0979, 0.1481, 0.1447, 0.4463, 0.1630])
    sensitivity = 2 * questions
    names, reported = tuple(f"p{k + 1}" for k in range(classes)), "p"

    def __init__(self, probabilities=None):
        shape = (self.classes, self.questions, self.answers)
        if probabilities is None:
            probabilities = np.random.default_rng(7).dirichlet(np.full(3, 2.0), size=shape[:2])
        self.probabilities = probabilities
        self.truth = self.truth / self.truth.sum()
        with pm.Model() as self.model:
            p = pm.Dirichlet("p", np.full(self.classes, 2.0), default_transform=None)
            q = pm.Dirichlet("q", np.full(shape, 2.0), default_transform=None)
            y = pm.Categorical("y", p, shape=self.n)
            x = pm.Categorical("x", q[y], shape=(self.n, self.questions))
            each = pt.arange(self.questions)
            table = pt.zeros(shape)[y[:, None], each, x].inc(1)
            release(pm.Laplace.dist, table, shape)

    def records(self, rng):
        """Simulate the confidential survey."""
        y = rng.choice(self.classes, size=self.n, p=self.truth)
        x = (rng.random((self.n, self.questions, 1)) > self.probabilities[y].cumsum(-1)).sum(-1)
        return {"y": y, "x": np.minimum(x, self.answers - 1)}

    def statistic(self, y, x):
        """Count people by class and answer."""
        cells = (y[:, None] * self.questions + np.arange(self.questions)) * self.answers + x
        shape = (self.classes, self.questions, self.answers)
        return np.bincount(cells.ravel(), minlength=math.prod(shape)).reshape(shape)

    def update(self, point, rng):
        """Draw the parameters given the records: Dirichlet distributions."""
        q = rng.standard_gamma(2.0 + self.statistic(point["y"], point["x"]))
        p = rng.standard_gamma(2.0 + np.bincount(point["y"], minlength=self.classes))
        return {"p": p / p.sum(), "q": q / q.sum(-1, keepdims=True)}

    def confidential(self, y, x):
        """Posterior mean from the confidential survey."""
        counts = 2.0 + np.bincount(y, minlength=self.classes)
        return counts / counts.sum()


class Regression:
    """Clamped and scaled second moments of two predictors and an outcome."""

    n, bound, variance, prior = 100, 10.0, 2.0, 2.0
    centre = np.array([0.9001, -1.1733])
    truth = np.array([-1.7950, -2.8890, -0.6620])
    sensitivity = 13.0  # the paper's; 9.375 would do: `pymc_dp.sensitivity`
    names, reported = ("beta0", "beta1", "beta2"), "beta"
    pairs = tuple(k[1:] for k in np.triu_indices(4))  # all but the product of ones

    def __init__(self):
        with pm.Model() as self.model:
            beta = pm.Normal("beta", 0, self.prior, shape=3)
            x = pm.Normal("x", self.centre, 1, shape=(self.n, 2))
            y = pm.Normal("y", beta[0] + x @ beta[1:], math.sqrt(self.variance), shape=self.n)
            z = pt.concatenate([x, y[:, None]], axis=1)
            z = pm.math.clip(z, -self.bound, self.bound) / self.bound
            z = pt.concatenate([pt.ones((self.n, 1)), z], axis=1)
            release(pm.Laplace.dist, (z.T @ z)[self.pairs], 9)

    def records(self, rng):
        """Simulate the confidential data."""
        x = rng.normal(self.centre, 1, size=(self.n, 2))
        mean = self.truth[0] + x @ self.truth[1:]
        return {"x": x, "y": rng.normal(mean, math.sqrt(self.variance))}

    def statistic(self, x, y):
        """Moments of clamped and scaled data, without noise."""
        z = np.clip(np.column_stack([x, y]), -self.bound, self.bound) / self.bound
        z = np.column_stack([np.ones(self.n), z])
        return (z.T @ z)[self.pairs]

    def posterior(self, x, y):
        """Mean and covariance of the coefficients given the confidential data."""
        x = np.column_stack([np.ones(self.n), x])
        covariance = np.linalg.inv(x.T @ x / self.variance + np.eye(3) / self.prior**2)
        return covariance @ x.T @ y / self.variance, covariance

    def update(self, point, rng):
        """Draw the coefficients given the records: a normal distribution."""
        mean, covariance = self.posterior(point["x"], point["y"])
        return {"beta": mean + np.linalg.cholesky(covariance) @ rng.standard_normal(3)}

    def confidential(self, x, y):
        """Posterior mean from the confidential data."""
        return self.posterior(x, y)[0]


def release(noise, statistic, shape):
    """The release and its scale, as shared variables.

    One compilation then serves all releases. For a single one, write ``pm.Laplace("released",
    statistic, scale, observed=...)``, as the notebooks do.
    """
    released, scale = pm.Flat("released", shape=shape), pm.Flat("scale", initval=1.0)
    pm.Potential("mechanism", pm.logp(noise(statistic, scale), released).sum())


def chain(case, step, released, scale, rng, iterations):
    """Draws of the parameters of interest, and acceptance of records, in the second half of the chain."""
    step.set_rng(rng)
    point = case.model.initial_point() | {"released": released, "scale": np.asarray(scale)}
    draws, rates, accepted = [], [], 0
    for iteration in range(iterations):
        point, (statistics,) = step.step(point)
        point = point | case.update(point, rng)
        if 2 * iteration >= iterations:
            draws.append(point[case.reported])
            rates.append(statistics["record_acceptance_rate"])
            accepted = accepted + statistics["record_accepted"]
    return np.array(draws), np.mean(rates), np.min(accepted) / len(draws)


def experiment(case, seed, replicates, repeats, iterations):
    """Coverage with new records each time; posterior means and acceptance with records kept."""
    own = [case.model[name] for name in ("y", "x")]
    step = dp.PrivatizedRecords(own, model=case.model)
    fixed = case.records(np.random.default_rng(seed))
    result = {"truth": [*case.truth], "confidential means": [*case.confidential(**fixed)]}
    for epsilon in EPSILONS:
        scale = case.sensitivity / epsilon
        covered, means, rates, lowest = np.zeros(len(case.names), int), [], [], []
        for k in range(replicates + repeats):
            rng = np.random.default_rng([seed, k, round(10 * epsilon)])
            records = case.records(rng) if k < replicates else fixed
            statistic = case.statistic(**records)
            released = rng.laplace(statistic, scale)
            draws, rate, low = chain(case, step, released, scale, rng, iterations)
            if k < replicates:
                lower, upper = np.quantile(draws, [0.05, 0.95], axis=0)
                covered += (lower <= case.truth) & (case.truth <= upper)
            else:
                means.append([*draws.mean(axis=0).round(4)])
                rates.append(round(float(rate), 4))
                lowest.append(round(float(low), 4))
        result[str(epsilon)] = {
            "covered": covered.tolist(), "means": means, "acceptance": rates, "lowest": lowest
        }  # fmt: skip
    return result


def tables(stored: Stored) -> list[str]:
    """Coverage, beside the paper's."""
    lines = []
    for kind, case in (("loglinear", LogLinear), ("regression", Regression)):
        rows = []
        for epsilon in map(str, EPSILONS):
            covered, published = (
                stored[kind][epsilon]["covered"],
                stored["published"][kind][epsilon],
            )
            both = zip(covered, published, strict=True)
            rows.append(
                [f"{float(epsilon):g}", *(f"{c / REPLICATES:.2f} ({p:.2f})" for c, p in both)]
            )
        lines += [*table(["epsilon", *case.names], rows), ""]
    return lines


def run(name: str, seed: int, options: Options) -> Stored:
    size = (2, 2, 200) if options.small else (REPLICATES, REPEATS, ITERATIONS)
    if name == "regression":
        return experiment(Regression(), 20240401, *size)
    probabilities = None
    if options.data is not None:  # (question, answer, class) there
        probabilities = np.transpose(json.loads(options.data.read_text())["pijk"], (2, 0, 1))
    return experiment(LogLinear(probabilities), 20240401, *size)


SETTINGS = {"loglinear": 0, "regression": 0}
NEEDS = {"loglinear": "loglinear_N100.json"}
EXPERIMENT = Experiment(__file__, run, SETTINGS, tables, needs=NEEDS)

if __name__ == "__main__":
    EXPERIMENT.main()
