"""Posteriors with private covariates of which only ranges are known: a table of docs/private_covariates.md.

40 minutes of one core. Two kinds of data at (1, 1e-6), the stand-in included:

- *simulated*: three covariates whose normal scores correlate 0.8, the third one an indicator that is 1 for one record
  in 20; logistic regression with coefficients of standard deviation 1/2, prior N(0, 1.5);
- *mortgages*: see ``scores_mortgages.py``, which says where the data are.

Each with the stand-in from ranges, and with one whose columns are independent and whose marginal laws are those of
the data (or their means and standard deviations, simulated), which somebody would have to know.
"""

import numpy as np
import pymc as pm

from runner import Experiment, Options, Stored, table
from scores_experiments import compared, coverage, logistic, model_of, posterior, without_privacy
from scores_mortgages import table_of

import pymc_dp as dp

from pymc_dp.queries import Ranges

EPSILON, CORRELATION, RARE = 1.0, 0.8, 1.645

#: Ranges of the columns of ``x``.
RANGES = {
    "simulated": Ranges(x=[(-4, 4), (-4, 4), [0, 1]]),
    "mortgages": Ranges(x=[[0, 1], [0, 1], (-1, 1)]),
}
#: Records by data, and data sets of each setting, which is named by data and stand-in.
RECORDS = {"simulated": 2000, "mortgages": 20_000}
SETTINGS = {
    "simulated_ranges": 60, "simulated_independent": 30, "mortgages_ranges": 30, "mortgages_independent": 30,
}  # fmt: skip


def simulated(n_records: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Covariates, outcomes and coefficients."""
    law = CORRELATION + (1 - CORRELATION) * np.eye(3)
    x = rng.multivariate_normal(np.zeros(3), law, size=n_records)
    x[:, 2] = x[:, 2] > RARE
    truth = rng.normal(size=4) * 0.5
    return x, logistic(rng, truth[0] + x @ truth[1:]), truth


def independent(model: pm.Model, x: np.ndarray, rng: np.random.Generator) -> pm.Model:
    """A stand-in with the marginal laws of the covariates, but without their dependence."""
    return pm.do(model, {"x": np.column_stack([rng.permutation(column) for column in x.T])})


def run(name: str, seed: int, options: Options) -> Stored:
    """Coverage (if the truth is known), width and shift of one data set."""
    data, kind = name.split("_")
    rng, truth = np.random.default_rng(seed), None
    if data == "simulated":
        x, y, truth = simulated(RECORDS[data], rng)
    else:
        x, y = table_of(options.data)
        rows = rng.permutation(len(y))[: RECORDS[data]]
        x, y = x[rows], y[rows]
    model = model_of("logistic", x, y)
    ranged = kind == "ranges"
    covariates = RANGES[data] if ranged else independent(model, x, np.random.default_rng(seed))
    simulator = dp.Simulator(model, covariates=covariates)
    _, draws = posterior(simulator, EPSILON, seed)
    start = simulator.position() if truth is None else truth
    found = compared(draws, *without_privacy(simulator, start))
    return found if truth is None else found | {"coverage": coverage(draws, truth)}


def tables(stored: Stored) -> list[str]:
    rows = []
    for name, found in stored.items():
        data, kind = name.split("_")
        made = "from ranges" if kind == "ranges" else "independent columns"
        shift = np.sqrt(np.mean(np.square(found["shift"])))
        covered = f"{np.mean(found['coverage']):.3f}" if "coverage" in found else ""
        figures = f"{np.mean(found['ratio']):.2f}", f"{shift:.2f}", covered, len(found["shift"])
        rows.append([data, RECORDS[data], made, *figures])
    shift = "shift (rms, in sds without privacy)"
    return table(["data", "records", "stand-in", "sd ratio", shift, "coverage", "data sets"], rows)


EXPERIMENT = Experiment(
    __file__, run, SETTINGS, tables, small=("simulated_ranges",),
    needs={name: "fetter_mortgages.csv" for name in SETTINGS if name.startswith("mortgages")},
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
