"""Records on a Dask cluster: the figures of docs/many_machines.md.

    python experiments/clusters.py [NAME ...] --processes 1 --data /somewhere/with/2/GB
    python experiments/clusters.py --print

*workers*: seconds for a sum of clipped scores of 1e7 simulated records with
20 covariates, held in memory by one and by two workers of one thread each; and for one during which a worker is killed.
*overhead*: seconds for a sum over few records on two workers, beyond those in one process. *latency*: seconds for a pass
with up to 64 workers whose tasks take 20 ms, as far away ones would.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time

from collections.abc import Callable
from typing import Any

import numpy as np

from distributed import Client
from out_of_core import model, records_of
from runner import Experiment, Options, Stored

import pymc_dp as dp

from pymc_dp.model import BlockedLikelihood, ClippedScores

N, D = 10**7, 20
N_SHARDS = 2
FEW = 2000
LATENCY = 0.02
WORKERS = (1, 4, 16, 64)


def seconds(question: Callable[[], Any], n: int) -> list[float]:
    """Times of a question that is asked `n` times, after a first one that compiles."""
    question()
    found = []
    for _ in range(n):
        begin = time.perf_counter()
        question()
        found.append(time.perf_counter() - begin)
    return found


def workers(options: Options) -> dict[str, Any]:
    """Seconds for a pass with one and with two workers, and while one of them is killed."""
    found: dict[str, Any] = {}
    theta, sums = np.full(D, 0.1), []
    for n in (1, 2):
        with cluster(n) as client:
            pieces = records_of(options.data, N, D).split(N_SHARDS)
            likelihood = BlockedLikelihood(model(D), dp.Shards(pieces, load=True, client=client))

            def question(likelihood: BlockedLikelihood = likelihood) -> None:
                sums.append(likelihood.total(ClippedScores(theta, 1.0)))

            found[f"workers_{n}"] = seconds(question, 7)
            if n == 2:
                pid = client.run(os.getpid)[next(iter(client.scheduler_info()["workers"]))]
                threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
                begin = time.perf_counter()
                question()
                found["killed"] = time.perf_counter() - begin
    found["same"] = all(np.array_equal(s, sums[0]) for s in sums)
    return found


def overhead(options: Options) -> dict[str, Any]:
    """Seconds for a pass over few records, on two workers and in this process."""
    rng, theta = np.random.default_rng(1), np.full(D, 0.1)
    records = dp.Records({"X": rng.normal(size=(FEW, D)), "y": rng.integers(0, 2, FEW)})
    with cluster(2) as client:
        here, there = (BlockedLikelihood(model(D), r) for r in (records, dp.Shards(records.split(2), client=client)))  # fmt: skip
        return {
            "alone": seconds(lambda: here.total(ClippedScores(theta, 1.0)), 100),
            "cluster": seconds(lambda: there.total(ClippedScores(theta, 1.0)), 100),
        }


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


def law(stored: dict[str, Any]) -> tuple[float, float]:
    """Milliseconds per pass beyond the latency: for the pass, and for each worker."""
    numbers = np.array([*WORKERS])
    beyond = [1e3 * (statistics.median(stored["latency"][str(n)]) - LATENCY) for n in WORKERS]
    slope, intercept = np.polyfit(numbers, beyond, 1)
    return float(intercept), float(slope)


def tables(stored: dict[str, Any]) -> list[str]:
    """The tables of the documentation."""
    lines = ["| workers | one pass (s) |", "| --- | --- |"]
    if "workers" in stored:
        one, two = (min(stored["workers"][f"workers_{n}"]) for n in (1, 2))
        lines += [
            f"| one | {one:.2f} |",
            f"| two | {two:.2f} |",
            f"| two, one of which is killed | {stored['workers']['killed']:.1f} |",
            "",
            f"speed-up: {one / two:.2f}",
        ]
    if "overhead" in stored:
        alone, on_cluster = (1e3 * statistics.median(stored["overhead"][k]) for k in ("alone", "cluster"))  # fmt: skip
        lines.append(f"overhead of a pass: {on_cluster - alone:.1f} ms")
    if "latency" in stored:
        intercept, slope = law(stored)
        shown = ", ".join(f"{1e3 * statistics.median(stored['latency'][str(n)]):.0f}" for n in WORKERS)  # fmt: skip
        lines.append(f"latency 20 ms, {', '.join(map(str, WORKERS))} workers: {shown} ms; about 20 {intercept:+.1f} {slope:+.2f} per worker")  # fmt: skip
    return lines


def run(name: str, seed: int, options: Options) -> Stored:
    """Seconds of one kind; in small of few records and workers."""
    return {"workers": workers, "overhead": overhead, "latency": latency}[name](options)


EXPERIMENT = Experiment(
    __file__, run, dict.fromkeys(["workers", "overhead", "latency"], 0), tables,
    needs={"workers": "a folder for the Parquet file"}, small=("overhead", "latency"),
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main()
