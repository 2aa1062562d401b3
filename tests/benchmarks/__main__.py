"""Benchmarks of the package as ratios, next to those of the last run.

``python -m tests.benchmarks`` takes 17 minutes of a core (so half an hour on a busy machine), prints the tables of docs/benchmarks.md and stores them. Parts by name::

    python -m tests.benchmarks cost memory
    python -m tests.benchmarks --print            # what is stored
    python -m tests.benchmarks --small            # a minute, to see whether it works; stored only with --output

A number in brackets is that of the last run; a star marks a ratio that has changed by more than a quarter, or a growth exponent by
more than 0.25. Whatever is compared is measured in turn, in one process, and medians are taken, since machines differ and are shared.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import platform
import sys
import time
import warnings

from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.tables import lines

STORE = Path(__file__).with_name("results.json")
PARTS = ("cost", "compile", "memory", "efficiency")


def measure(part: str, small: bool) -> dict[str, Any]:
    """Tables of a part. Modules are loaded here, so that --print need not wait for PyMC."""
    from tests.benchmarks import cost, efficiency, memory

    run = {
        "cost": cost.cost, "compile": cost.compiling, "memory": memory.memory, "efficiency": efficiency.efficiency,
    }  # fmt: skip
    return run[part](small)


def machine() -> dict[str, Any]:
    """What results depend on."""
    return {
        "processor": processor(), "cores": os.cpu_count(), "python": platform.python_version(),
        **{name: version(name) for name in ("pymc", "pytensor", "numpy", "numba")},
    }  # fmt: skip


def processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [x.split(":")[1].strip() for x in text.splitlines() if x.startswith("model name")]
    return names[0] if names else platform.machine()


def run(part: str, small: bool) -> dict[str, Any]:
    """A part with the conditions under which it was measured."""
    before, began = os.getloadavg()[0], time.perf_counter()
    tables = measure(part, small)
    return {
        "date": time.strftime("%Y-%m-%d"), "seconds": round(time.perf_counter() - began, 1),
        "load": [round(before, 2), round(os.getloadavg()[0], 2)], "machine": machine(), "tables": rounded(tables),
    }  # fmt: skip


def rounded(value: Any) -> Any:
    """Four digits are more than are known."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return None if value is None else float(f"{value:.4g}")


def main(arguments: list[str] | None = None) -> int:
    """Measure, compare, print, store."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.split("\n")[0])  # fmt: skip
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--small", action="store_true", help="small data, few samplers")
    parser.add_argument("--output", type=Path, help=f"file of the last run, by default {STORE.name}")  # fmt: skip
    parser.add_argument("--print", action="store_true", help="print what is stored")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    store = options.output or STORE
    stored = json.loads(store.read_text()) if store.exists() else {}
    chosen = [part for part in PARTS if part in (options.parts or PARTS)]
    if options.print:
        print("\n".join(lines({part: stored[part] for part in chosen if part in stored})))
        return 0
    # Of PyMC's other way to compile, which is not used here.
    warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS", UserWarning)
    for part in chosen:
        found = run(part, options.small)
        print("\n".join(lines({part: found}, stored)), flush=True)
        stored[part] = found
        if options.output or not options.small:  # after each part: a run may be stopped
            ordered = {name: stored[name] for name in PARTS if name in stored}
            store.write_text(json.dumps(ordered, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
