"""Time to the first output of ``dp.sample``, and its longest silence, for six models.

    python experiments/first_sign.py --label after [NAME ...]
    python experiments/first_sign.py --print

Writes ``first_sign.json`` beside this file, in some minutes of two cores; ``--before`` is ``--label before``. Each model
has 2000 simulated records and runs in a new process with the default settings, twice. Its output goes to a
pseudo-terminal, whose bytes are timed here; with ``--plain`` to a pipe, as in a batch job. Time before the call,
as for imports, does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pty
import re
import subprocess
import sys
import tempfile
import time

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

STORE = Path(__file__).with_suffix(".json")
N_RECORDS, N_GROUPS, EPSILON, DELTA = 2000, 8, 1.0, 1e-6
NAMES = (
    "normal mean", "logistic", "Poisson with groups", "hierarchical normal", "StudentT regression", "negative binomial",
)  # fmt: skip
#: Escape sequences of terminals.
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def model_of(name: str) -> Any:
    """A model with its simulated data."""
    import numpy as np
    import pymc as pm

    rng = np.random.default_rng(1)
    x, group = rng.normal(size=(N_RECORDS, 5)), rng.integers(N_GROUPS, size=N_RECORDS)
    effect = rng.normal(0, 0.5, size=N_GROUPS)[group]
    slope = np.array([0.5, -0.3, 0.2, 0.0, 0.1])
    with pm.Model() as model:
        if name == "normal mean":
            pm.Normal("y", pm.Normal("mu", 0, 10), 2, observed=rng.normal(1, 2, N_RECORDS))
        elif name == "logistic":
            beta = pm.Normal("beta", 0, 2, shape=5)
            y = rng.random(N_RECORDS) < 1 / (1 + np.exp(-x @ slope))
            pm.Bernoulli("y", logit_p=x @ beta, observed=y.astype(int))
        elif name == "Poisson with groups":
            level, shift = pm.Normal("level", 0, 1), pm.Normal("shift", 0, 0.5, shape=N_GROUPS)
            y = rng.poisson(np.exp(0.5 + effect))
            pm.Poisson("y", pm.math.exp(level + shift[group]), observed=y)
        elif name == "hierarchical normal":
            mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
            means = pm.Normal("means", mu, tau, shape=N_GROUPS)
            y = rng.normal(effect, 1)
            pm.Normal("y", means[group], pm.HalfNormal("sigma", 2), observed=y)
        elif name == "StudentT regression":
            beta, sigma = pm.Normal("beta", 0, 2, shape=5), pm.HalfNormal("sigma", 2)
            y = x @ slope + rng.standard_t(4, N_RECORDS)
            pm.StudentT("y", nu=4, mu=x @ beta, sigma=sigma, observed=y)
        else:
            beta, alpha = pm.Normal("beta", 0, 1, shape=5), pm.Gamma("alpha", 2, 0.5)
            y = rng.negative_binomial(3, 3 / (3 + np.exp(x @ slope)))
            pm.NegativeBinomial("y", mu=pm.math.exp(x @ beta), alpha=alpha, observed=y)
    return model


def run(name: str, marks: Path) -> None:
    """In the new process: sample twice; the times of both calls go to a file."""
    import pymc_dp as dp

    model, times = model_of(name), []
    for _ in range(2):
        times.append(time.monotonic())
        dp.sample(epsilon=EPSILON, delta=DELTA, model=model, covariates="public", random_seed=1)
        times.append(time.monotonic())
    marks.write_text(json.dumps(times))


def _bytes(command: list[str], plain: bool) -> Iterator[tuple[float, bytes]]:
    """Output of a command, with times."""
    ours, its = os.pipe() if plain else pty.openpty()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its)
    os.close(its)
    try:
        while chunk := os.read(ours, 65536):
            yield time.monotonic(), chunk
    except OSError:  # the end of a pseudo-terminal
        pass
    os.close(ours)
    if process.wait():
        raise RuntimeError(f"{command} has ended with {process.returncode}.")


def measured(name: str, plain: bool) -> dict[str, Any]:
    """Times of one model, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "times"
        output = list(_bytes([sys.executable, __file__, "--run", name, str(marks)], plain))
        begin, end, begin_again, end_again = json.loads(marks.read_text())
    within = [(t, text) for t, text in output if begin <= t <= end]
    seen = [t for t, text in within if _ESCAPES.sub(b"", text).strip()]
    gaps = [b - a for a, b in zip([begin, *seen], [*seen, end], strict=True)]
    text = b"".join(text for _, text in output)
    print(_ESCAPES.sub(b"", text).decode(errors="replace")[:2000], file=sys.stderr)
    return {
        "first": round((seen or [end])[0] - begin, 2), "silence": round(max(gaps), 2),
        "total": round(end - begin, 1), "second call": round(end_again - begin_again, 1),
    }  # fmt: skip


def table(stored: dict[str, Any]) -> list[str]:
    """All runs that are stored."""
    lines = [
        "| run | model | first output (s) | longest silence (s) | whole call (s) | second call (s) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for run_name, found in stored.items():
        for name, row in found["models"].items():
            cells = [run_name, name, *(str(value) for value in row.values())]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, store and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--label", default="after")
    parser.add_argument("--before", dest="label", action="store_const", const="before")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(given.run[0], Path(given.run[1]))
        return
    stored = json.loads(STORE.read_text()) if STORE.exists() else {}
    if not given.print:
        python = ".".join(platform.python_version_tuple()[:2])
        key = f"{given.label}, Python {python}, {'pipe' if given.plain else 'terminal'}"
        found = stored.setdefault(key, {"models": {}})
        found["pymc"], found["cores"] = version("pymc"), os.cpu_count()
        for name in given.names or NAMES:
            found["models"][name] = measured(name, given.plain)
            STORE.write_text(json.dumps(stored, indent=1) + "\n")
    print("\n".join(table(stored)))


if __name__ == "__main__":
    main()
