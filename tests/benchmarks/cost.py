"""Time of iterations and of compiling, and how time grows."""

from __future__ import annotations

import sys
import time

from itertools import product
from typing import Any

import numpy as np

from threadpoolctl import threadpool_limits

from tests.benchmarks.by_hand import Iteration
from tests.benchmarks.regression import problem
from tests.benchmarks.samplers import SAMPLERS, started, under_way

SIZES, DIMENSIONS = (10_000, 100_000, 1_000_000), (2, 20, 100)
SMALL_SIZES, SMALL_DIMENSIONS = (500, 1000), (2, 3)
Table = dict[str, dict[str, float | None]]


def seconds(call: Iteration) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def medians(calls: list[Iteration], budget: float) -> list[float]:
    """Median seconds of each call; they alternate, for so many seconds in all, but 3 times at least.

    Quick ones are made several times in their turn, as there may be few turns.
    """
    for call in calls:
        call()
    once = np.array([seconds(call) for call in calls])
    repeats = np.clip(once.max() / (10 * once), 1, 20).astype(int)
    turns = int(np.clip(budget / (once @ repeats), 3, 300))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for call, spent, k in zip(calls, times, repeats, strict=True):
            spent.extend(seconds(call) for _ in range(k))
    return [float(np.median(spent)) for spent in times]


def label(n: int, d: int) -> str:
    return f"N = {n:.0e}, d = {d}".replace("e+0", "e")


def cost(small: bool = False) -> dict[str, Table]:
    """Iterations: in microseconds, over the bare likelihood of all records, over NumPy; and growth."""
    sizes, dimensions = (SMALL_SIZES, SMALL_DIMENSIONS) if small else (SIZES, DIMENSIONS)
    samplers = [*SAMPLERS][: 2 if small else None]
    times: dict[tuple[str, int, int], list[float]] = {}
    for n, d in product(sizes, dimensions):
        p = problem(n, d)
        for name in samplers:
            print(f"{label(n, d)}: {name}", file=sys.stderr)
            with threadpool_limits(1):
                step, iterate = under_way(name, p)
                by_hand = SAMPLERS[name].by_hand(p, step)
                calls = [
                    iterate,
                    lambda bare=step.likelihood._batch.full, at=p.truth: bare(at),
                    by_hand,
                ]
                times[name, n, d] = medians(calls, 0.05 if small else 0.7)
            del step, iterate, by_hand, calls  # before the next one copies the data
    at = [*product(sizes, dimensions)]

    def table(value) -> Table:
        return {s: {label(*k): float(value(*times[s, *k])) for k in at} for s in samplers}

    return {
        "iteration / bare likelihood": table(lambda t, bare, hand: t / bare),
        "iteration / NumPy": table(lambda t, bare, hand: t / hand),
        "microseconds": table(lambda t, bare, hand: 1e6 * t),
        "growth exponents": {s: growth(times, s, sizes, dimensions) for s in samplers},
    }


def growth(times: dict, name: str, sizes: tuple, dimensions: tuple) -> dict[str, float | None]:
    """Slopes of log time against the log of N, and of d."""

    def slope(values: tuple, spent: list[float]) -> float:
        return float(np.polyfit(np.log(values), np.log(spent), 1)[0])

    in_n = {f"in N, d = {d}": slope(sizes, [times[name, n, d][0] for n in sizes]) for d in dimensions}  # fmt: skip
    in_d = {
        f"in d, {label(n, 0).split(',')[0]}": slope(
            dimensions, [times[name, n, d][0] for d in dimensions]
        )
        for n in sizes
    }
    return in_n | in_d


def compiling(small: bool = False, rounds: int = 3) -> dict[str, Table]:
    """Building a step, and that with its first iteration, over PyMC's function for the log-density.

    In a process that has compiled the same before: what is new is the model.
    """
    n, d = (500, 2) if small else (10_000, 20)
    found: Table = {}
    for name in [*SAMPLERS][: 1 if small else None]:
        times = []
        for turn in range(1 + (1 if small else rounds)):
            p = problem(n, d, seed=turn)
            logp = seconds(lambda p=p: p.model.compile_logp()(p.model.initial_point()))
            made: list[Any] = []
            build = seconds(lambda p=p, name=name: made.append(SAMPLERS[name].build(p)))
            first = seconds(lambda p=p, step=made[0]: started(step, p))
            times.append((build / logp, (build + first) / logp, 1e3 * logp))
        columns = ("build", "build and first iteration", "compile_logp [ms]")
        found[name] = dict(zip(columns, np.median(times[1:], axis=0).tolist(), strict=True))
    return {"building / compile_logp": found}
