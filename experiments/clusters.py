"""Records on a Dask cluster: the figures of docs/many_machines.md. ``--processes 1 --data`` a folder with 2 GB.

*workers*: seconds for a sum of clipped scores of 1e7 simulated records with 20 covariates, held in memory by one and by
two workers of one thread each; and for one during which a worker is killed. *overhead*: seconds for a sum over few
records on two workers, beyond those in one process. *latency*: seconds for a pass with up to 64 workers whose tasks take
20 ms, as far away ones would.
"""

import os
import signal
import statistics
import threading
import time

from typing import Any

import numpy as np

from distributed import Client
from out_of_core import model, records_of, seconds
from runner import Experiment, Options, Stored, table

import pymc_dp as dp

from pymc_dp.model import BlockedLikelihood, ClippedScores

N, D = 10**7, 20
N_SHARDS = 2
FEW = 2000
TERM = ClippedScores(np.full(D, 0.1), 1.0)
LATENCY = 0.02
WORKERS = (1, 4, 16, 64)


def workers(options: Options) -> dict[str, Any]:
    """Seconds for a pass with one and with two workers, and while one of them is killed."""
    found: dict[str, Any] = {}
    sums = []
    for n in (1, 2):
        with cluster(n) as client:
            pieces = records_of(options.data, N, D).split(N_SHARDS)
            likelihood = BlockedLikelihood(model(D), dp.Shards(pieces, load=True, client=client))

            def question(likelihood: BlockedLikelihood = likelihood) -> None:
                sums.append(likelihood.total(TERM))

            found[f"workers_{n}"] = seconds(question, 7)
            if n == 2:
                pid = client.run(os.getpid)[next(iter(client.scheduler_info()["workers"]))]
                threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
                begin = time.perf_counter()
                question()
                found["killed"] = time.perf_counter() - begin
    return found | {"same": all(np.array_equal(s, sums[0]) for s in sums)}


def overhead(options: Options) -> dict[str, Any]:
    """Seconds for a pass over few records, on two workers and in this process."""
    rng, found = np.random.default_rng(1), {}
    records = dp.Records({"X": rng.normal(size=(FEW, D)), "y": rng.integers(0, 2, FEW)})
    with cluster(2) as client:
        shards = dp.Shards(records.split(2), client=client)
        for name, source in (("alone", records), ("cluster", shards)):
            likelihood = BlockedLikelihood(model(D), source)
            found[name] = seconds(lambda asked=likelihood: asked.total(TERM), 100)
    return found


def latency(options: Options) -> dict[str, Any]:
    """Seconds for a pass with workers, one shard each, that answer after a fixed time."""
    found = {}
    for n in WORKERS[:2] if options.small else WORKERS:
        pieces = dp.Records({"x": np.arange(float(n))}).split(n)
        with cluster(n, processes=False) as client:
            shards = dp.Shards(pieces, client=client)
            found[str(n)] = seconds(lambda shards=shards: shards.map(_late), 50)
    return found


def _late(records: dp.Records, _: None) -> int:
    time.sleep(LATENCY)
    return records.n_records


def cluster(n: int, processes: bool = True) -> Client:
    """A client of a cluster of processes, or threads, on this machine."""
    options = {"n_workers": n, "threads_per_worker": 1, "dashboard_address": ":0"}
    return Client(processes=processes, memory_limit=0, **options)


def milliseconds(stored: dict[str, Any], part: str, name: object) -> float:
    return 1e3 * statistics.median(stored[part][str(name)])


def law(stored: dict[str, Any]) -> tuple[float, float]:
    """Milliseconds per pass beyond the latency: for the pass, and for each worker."""
    beyond = [milliseconds(stored, "latency", n) - 1e3 * LATENCY for n in WORKERS]
    slope, intercept = np.polyfit(WORKERS, beyond, 1)
    return float(intercept), float(slope)


def tables(stored: dict[str, Any]) -> list[str]:
    """The table of the documentation, and the figures below it."""
    one, two = (min(stored["workers"][f"workers_{n}"]) for n in (1, 2))
    killed = f"{stored['workers']['killed']:.1f}"
    rows = [["one", f"{one:.2f}"], ["two", f"{two:.2f}"], ["two, one of which is killed", killed]]
    more = milliseconds(stored, "overhead", "cluster") - milliseconds(stored, "overhead", "alone")
    intercept, slope = law(stored)
    names = ", ".join(map(str, WORKERS))
    shown = ", ".join(f"{milliseconds(stored, 'latency', n):.0f}" for n in WORKERS)
    return [
        *table(["workers", "one pass (s)"], rows),
        "",
        f"speed-up: {one / two:.2f}",
        f"overhead of a pass: {more:.1f} ms",
        f"latency 20 ms, {names} workers: {shown} ms; about 20 {intercept:+.1f} {slope:+.2f} per worker",
    ]


def run(name: str, seed: int, options: Options) -> Stored:
    """Seconds of one kind; in small of few records and workers."""
    return {"workers": workers, "overhead": overhead, "latency": latency}[name](options)


EXPERIMENT = Experiment(
    __file__, run, dict.fromkeys(["workers", "overhead", "latency"], 0), tables,
    needs={"workers": "a folder for the Parquet file"}, small=("overhead", "latency"),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
