"""pymc_dp beside what a user could take instead: same data, same guarantee, same machine.

Settings are ``"TASK | PEER | EPSILON"``. Peers in environments of their own are scripts (``*_peer.py``, which say how to
make the environment); a variable names the Python of each, for example ``PYMC_DP_D3P=~/d3p/bin/python``. Without it the
peer is left out.
"""

import os
import subprocess
import sys
import tempfile

from pathlib import Path
from typing import Any

import numpy as np

from scipy import special

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import peer_tasks  # noqa: E402

from mmd import mmd  # noqa: E402
from peer_tables import figure, tables  # noqa: E402
from peer_tasks import DELTA, PRIOR_SD, Problem, Task, fit, task  # noqa: E402
from runner import Experiment, Options, Stored  # noqa: E402

LEVELS = (0.8, 0.9, 0.95)
#: Values of epsilon, and data sets at each, of a task.
PLAN = {
    "adult_reduced": ((0.1, 0.3, 0.5, 1.0), 20), "adult_income": ((1.0, 2.0, 4.0, 10.0), 10),
    "noisy_regression": ((1.0, 2.0, 5.0, 10.0, 20.0), 50), "wage": ((1.0, 4.0), 20), "default": ((1.0, 4.0), 80),
    "compas": ((1.0, 4.0), 20), "german": ((1.0, 4.0), 20), "arrests": ((1.0, 4.0), 40), "arrests_nb": ((1.0, 4.0), 40),
}  # fmt: skip
#: Peers with an environment of their own: script, variable that names its Python, tasks.
LOGISTIC = ("adult_reduced", "adult_income", "default", "compas", "german")
NORMAL = ("noisy_regression", "wage")
SCRIPTS = {
    "d3p": ("d3p_peer.py", "PYMC_DP_D3P", tuple(peer_tasks.TASKS)),
    "NAPSU-MQ": ("napsu_mq_peer.py", "PYMC_DP_TWINIFY", ("adult_reduced", "compas")),
    "NA-DPVI": ("na_dpvi_peer.py", "PYMC_DP_NA_DPVI", LOGISTIC),
    "diffprivlib": ("diffprivlib_peer.py", "PYMC_DP_PLAIN", LOGISTIC),
    "dp-statsmodels": ("dp_statsmodels_peer.py", "PYMC_DP_PLAIN", NORMAL),
}
#: Peers in this environment, and those without privacy, which do not depend on epsilon.
OWN = ("pymc_dp", "pymc_dp, public covariates", "NUTS", "ADVI")
NOT_PRIVATE = ("NUTS", "ADVI")
#: Data sets of a peer, if fewer than the task's.
FEWER = {"NUTS": 1, "ADVI": 1, "pymc_dp, public covariates": 5}
#: Draws of the posterior without privacy, and of each other one in the maximum mean discrepancy.
N_REFERENCE, N_MMD = 20_000, 1000


def external(peer: str, t: Task, p: Problem, epsilon: float, seed: int) -> tuple[np.ndarray, float]:
    """Draws and seconds of a peer in its own environment."""
    script, variable, _ = SCRIPTS[peer]
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("problem.npz", "result.npz")]
        np.savez(
            files[0], x=t.design(p.z), y=p.y, family=t.family, prior_sd=PRIOR_SD, epsilon=epsilon, delta=DELTA, seed=seed, z=p.z,
            levels=[c.levels or 0 for c in t.covariates], outcome=t.outcome, norm=t.largest_norm, largest=t.largest,
        )  # fmt: skip
        command = [os.environ[variable], str(HERE / script), *files]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with np.load(files[1]) as found:
            return found["draws"], float(found["seconds"])


def predictive(family: str, draws: np.ndarray, log_sd: float, x, y) -> float:
    """Mean log predictive density of new records."""
    tail = np.full((len(draws), 1), log_sd)
    densities = [
        peer_tasks.log_likelihood(family, theta, x, y) for theta in np.hstack([draws, tail])
    ]
    return float(np.mean(special.logsumexp(densities, axis=0) - np.log(len(draws))))


def measures(t: Task, p: Problem, draws: np.ndarray, seed: int) -> dict[str, Any]:
    """One private posterior against the posterior without privacy, and the truth."""
    rng = np.random.default_rng([seed, 1])
    mode, covariance = fit(t.family, t.design(p.z), p.y, PRIOR_SD)
    exact = rng.multivariate_normal(mode, covariance, N_REFERENCE, method="cholesky")
    log_scale = exact[:, t.n_dim :].mean() if t.family in peer_tasks.WITH_SCALE else 0.0
    exact = exact[:, : t.n_dim]
    mean, sd = exact.mean(axis=0), exact.std(axis=0)
    shift = (draws.mean(axis=0) - mean) / sd
    found: dict[str, Any] = {"shift": float(np.sqrt(np.mean(shift**2)))}
    some = draws[rng.permutation(len(draws))[:N_MMD]]
    new = t.design(p.z_new), p.y_new
    if len(p.y_new):
        found["lpd"] = predictive(t.family, some[:400], log_scale, *new)
        found["lpd"] -= predictive(t.family, exact[:400], log_scale, *new)
    if t.family == "logistic" and len(p.y_new):
        chance = special.expit(new[0] @ some[:400].T).mean(axis=1)
        found["accuracy"] = float(np.mean((chance > 0.5) == (new[1] == 1)))
        found["calibration"] = calibration_error(chance, new[1])
    if t.family == "normal":
        found["error"] = float(np.sqrt(np.mean((draws.mean(axis=0)[1:] - p.truth[1:]) ** 2)))
    if len(draws) == 1:
        return found  # a point: no interval
    for level in LEVELS:
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        found[f"coverage {level}"] = float(np.mean((low < p.truth) & (p.truth < high)))
    low, high = np.quantile(exact, [0.05, 0.95], axis=0)
    found["covers itself"] = float(np.mean((low < p.truth) & (p.truth < high)))
    widths = np.diff(np.quantile(draws, [0.05, 0.95], axis=0), axis=0)[0] / (high - low)
    found["width"] = float(np.exp(np.mean(np.log(widths))))
    found["widest"] = float(widths.max())
    found["sd ratio"] = float(np.exp(np.mean(np.log(draws.std(axis=0) / sd))))
    found["mmd"] = mmd(some / sd, exact[:N_MMD] / sd)
    return found


def calibration_error(chance: np.ndarray, y: np.ndarray, n_bins: int = 10) -> float:
    """Mean absolute difference of predicted and observed frequencies, in bins of equal numbers of records."""
    parts = np.array_split(np.argsort(chance), n_bins)
    return float(np.mean([abs(chance[part].mean() - y[part].mean()) for part in parts]))


def run(name: str, seed: int, options: Options) -> Stored:
    which, peer, epsilon = name.split(" | ")
    t = task(which)
    p = t.problem(np.random.default_rng([seed, 0]))
    if peer in SCRIPTS:
        draws, seconds = external(peer, t, p, float(epsilon), seed)
    else:
        import own_peers  # needs PyMC

        # One run has the default chains and draws, for its time.
        is_default = not peer.startswith("pymc_dp") or (seed == 0 and epsilon == "1")
        how = {} if is_default else {"draws": own_peers.DRAWS, "chains": own_peers.CHAINS}
        if options.small:
            how = {"draws": 100, "chains": 1}
        draws, seconds = own_peers.run(peer, t, p, float(epsilon), seed, **how)
    if not np.all(np.isfinite(draws)):
        return {"failed": True, "seconds": seconds}
    return measures(t, p, draws, seed) | {"seconds": seconds}


def settings() -> dict[str, int]:
    """Tasks, peers and values of epsilon, with the number of data sets."""
    found = {}
    for name, (epsilons, n_sets) in PLAN.items():
        for peer in (*OWN, *SCRIPTS):
            if peer in OWN or (name in SCRIPTS[peer][2] and SCRIPTS[peer][1] in os.environ):
                for epsilon in (np.inf,) if peer in NOT_PRIVATE else epsilons:
                    found[f"{name} | {peer} | {epsilon:g}"] = min(n_sets, FEWER.get(peer, n_sets))
    return found


EXPERIMENT = Experiment(
    __file__.replace("run_peers", "peers"), run, settings(), tables, figure=figure,
    small=("noisy_regression | pymc_dp | 5", "noisy_regression | NUTS | inf"),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
