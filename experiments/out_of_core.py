"""Posteriors of records on disk under a limit on memory: the figures of docs/larger_than_memory.md.

Logistic regressions of simulated records, in Parquet files that are made in the folder ``--data`` (5 GB) at the first
run. Each runs on one thread, with ``dp.sample`` at (1, 1e-9), and by itself: give one name, and ``--processes 1``. Where
this program may make a control group (Linux, as root), its process gets 1 GB of memory and is killed if it needs more.
*growth*: seconds for a sum of clipped scores over files of 1e5 to 1e8 records.
"""

import os
import resource
import tempfile
import time

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pymc as pm

from runner import Experiment, Options, Stored, table

import pymc_dp as dp

from pymc_dp.model import BlockedLikelihood, ClippedScores

EPSILON, DELTA = 1.0, 1e-9
LIMIT = 10**9
#: Records and coefficients.
SETTINGS = {"1e7": (10**7, 20), "1e8": (10**8, 4)}
GROWTH = (10**5, 10**6, 10**7, 10**8)
_ROWS = 250_000  # in a row group


def truth(d: int) -> np.ndarray:
    """Coefficients of the simulated records."""
    return np.linspace(-0.4, 0.4, d)


def make(path: Path, n_records: int, d: int) -> None:
    """Simulate records into a Parquet file."""
    rng, names = np.random.default_rng(d), [f"x{k}" for k in range(d)]
    schema = pa.schema([*((name, pa.float64()) for name in names), ("y", pa.int8())])
    part = path.with_suffix(".part")
    with pq.ParquetWriter(part, schema, compression="none", use_dictionary=False) as writer:
        for begin in range(0, n_records, _ROWS):
            x = rng.normal(size=(min(_ROWS, n_records - begin), d))
            y = rng.random(len(x)) < 1 / (1 + np.exp(-x @ truth(d)))
            writer.write_table(pa.table([*x.T, y.astype(np.int8)], schema=schema))
    part.rename(path)


def records_of(folder: Path, n_records: int, d: int) -> dp.Records:
    """Records on disk, simulated if they are not there."""
    path = folder / f"logistic_{n_records}_{d}.parquet"
    if not path.exists():
        make(path, n_records, d)
    return dp.Records.from_parquet(path, arguments={"X": [f"x{k}" for k in range(d)], "y": "y"})


def model(d: int) -> pm.Model:
    """Logistic regression."""
    with pm.Model() as found:
        X, y = pm.Data("X", np.zeros((1, d))), pm.Data("y", np.zeros(1))
        pm.Bernoulli("outcome", logit_p=X @ pm.Normal("beta", 0, 1, shape=d), observed=y)
    return found


def limited() -> bool:
    """Limit the memory of this process, if that is allowed; whether it was."""
    group = Path("/sys/fs/cgroup/memory/pymc_dp_experiment")
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return False
    return True


def seconds(question: Callable[[], Any], n: int) -> list[float]:
    """Times of a question that is asked `n` times, after a first one that compiles."""
    question()
    found = []
    for _ in range(n):
        begin = time.perf_counter()
        question()
        found.append(time.perf_counter() - begin)
    return found


def peak() -> float:
    """Largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(folder: Path, n_records: int, d: int, limit: bool) -> dict[str, Any]:
    """``dp.sample`` of a setting, in this process."""
    records = records_of(folder, n_records, d)
    limited_now, clock = limit and limited(), [time.perf_counter()]
    simulator = dp.Simulator(model(d), data=records, covariates="public")
    clock.append(time.perf_counter())
    for _ in range(2):  # the first one compiles
        simulator.likelihood.total(ClippedScores(np.zeros(d), 1.0))
        clock.append(time.perf_counter())
    budget = dp.PrivacyBudget(EPSILON, DELTA, chains=1)
    scores = dp.private_scores(simulator, budget=budget, random_seed=1)
    clock.append(time.perf_counter())
    step = dp.DPScore(scores, simulator=simulator)
    how = {} if limit else {"draws": 50, "chains": 1}
    idata = dp.sample(step=step, cores=1, progressbar=False, random_seed=1, **how)
    clock.append(time.perf_counter())
    draws = idata["posterior"]["beta"].to_numpy().reshape(-1, d)
    errors = (draws.mean(axis=0) - truth(d)) / draws.std(axis=0)
    build, _, one_pass, release, sample = np.diff(clock)
    return {
        "build": build, "pass": one_pass, "release": release, "sample": sample, "peak_mb": peak(),
        "error": float(np.sqrt(np.mean(errors**2))), "sd": float(draws.std(axis=0).mean()),
        "limited": limited_now, "megabytes": records.n_records * (8 * d + 1) / 1e6,
    }  # fmt: skip


def growth(folder: Path, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Seconds for a pass over files of several lengths, in the cache of the disk, and largest memory after each."""
    files = [records_of(folder, n, 4) for n in sizes]  # made before the peak counts
    found: dict[str, Any] = {"n": sizes, "seconds": [], "peak_mb": []}
    for n, part in zip(sizes, files, strict=True):
        likelihood, term = BlockedLikelihood(model(4), part), ClippedScores(np.zeros(4), 1.0)
        times = seconds(lambda: likelihood.total(term), max(1, min(19, 10**7 // n - 1)))
        found["seconds"].append(min(times))
        found["peak_mb"].append(peak())
    return found


def run(name: str, seed: int, options: Options) -> Stored:
    """Figures of one setting, or of growth; in small of few records."""
    if options.small:
        with tempfile.TemporaryDirectory() as folder:
            if name == "growth":
                return growth(Path(folder), (1000, 10_000))
            return one(Path(folder), 10_000, 2, limit=False)
    if name == "growth":
        return growth(options.data, GROWTH)
    return one(options.data, *SETTINGS[name], limit=True)


def tables(stored: Stored) -> list[str]:
    """The table of the documentation, and the figures below it."""
    rows = []
    for name, (n_records, d) in SETTINGS.items():
        f = stored[name]
        total = f["build"] + f["release"] + f["sample"]
        sizes = f"{n_records:.0e}", d, f"{f['megabytes'] / 1e3:.1f}"
        rows.append([*sizes, f"{f['pass']:.1f}", f"{total:.0f}", f"{f['peak_mb'] / 1e3:.2f}"])
    heads = ["records", "coefficients", "file (GB)", "one pass (s)", "`dp.sample`, in all (s)"]
    f = stored["growth"]
    slope = np.polyfit(np.log(f["n"]), np.log(f["seconds"]), 1)[0]
    shown, peaks = ", ".join(f"{s:.3g}" for s in f["seconds"]), f["peak_mb"]
    grown = f"growth: {shown} s; exponent {slope:.2f}; peak {peaks[0]:.0f} to {peaks[-1]:.0f} MB"
    return [*table([*heads, "peak memory (GB)"], rows), "", grown]


EXPERIMENT = Experiment(
    __file__, run, dict.fromkeys([*SETTINGS, "growth"], 0), tables, small=("1e7", "growth"),
    needs=dict.fromkeys([*SETTINGS, "growth"], "a folder for the Parquet files"),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
