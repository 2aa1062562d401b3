"""Memory of building a step and of 20 iterations, in multiples of the covariates; each sampler in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pathlib import Path

from tests.benchmarks.cost import Table, label
from tests.benchmarks.regression import problem
from tests.benchmarks.samplers import SAMPLERS, under_way

ROOT = Path(__file__).resolve().parents[2]


def resident(what: str) -> int:
    """Bytes: VmRSS, those in memory now; VmHWM, the most since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {what} in /proc/self/status")


def forget_peak() -> None:
    """Let the peak begin anew: getrusage has that of making the data, and of the process that started this one."""
    Path("/proc/self/clear_refs").write_text("5")


def extra(sampler: str, n: int, d: int, iterations: int = 20) -> float:
    """Peak beyond what the process had with its data and model, over the size of the covariates."""
    p = problem(n, d)
    forget_peak()
    before = resident("VmRSS")
    _, iterate = under_way(sampler, p)
    for _ in range(iterations):
        iterate()
    return (resident("VmHWM") - before) / p.x.nbytes


def memory(small: bool = False) -> dict[str, Table]:
    """Of every sampler."""
    sizes = [(2000, 2)] if small else [(100_000, 20), (1_000_000, 20)]
    found: Table = {}
    for name in [*SAMPLERS][: 1 if small else None]:
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.memory", name, json.dumps(sizes)]  # fmt: skip
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)  # fmt: skip
        values = json.loads(run.stdout.splitlines()[-1])
        found[name] = {label(*size): value for size, value in zip(sizes, values, strict=True)}
    return {"extra memory / covariates": found}


def main() -> int:
    """For one sampler: compilers and libraries are loaded by a small model, and are not counted."""
    name, sizes = sys.argv[1], json.loads(sys.argv[2])
    extra(name, 1000, sizes[0][1])
    print(json.dumps([extra(name, n, d) for n, d in sizes]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
