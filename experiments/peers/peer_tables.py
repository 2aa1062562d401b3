"""Tables of docs/peers.md, from what run_peers.py stored."""

from __future__ import annotations

import ast

from pathlib import Path
from typing import Any

import numpy as np

#: Function that holds what a user of each peer writes: its file, and its name.
WRITTEN = {
    "pymc_dp": ("own_peers.py", "pymc_dp"),
    "NUTS": ("own_peers.py", "nuts"),
    "ADVI": ("own_peers.py", "advi"),
    "d3p": ("d3p_peer.py", "posterior"),
    "NA-DPVI": ("na_dpvi_peer.py", "posterior"),
    "NAPSU-MQ": ("napsu_mq_peer.py", "posterior"),
    "diffprivlib": ("diffprivlib_peer.py", "posterior"),
    "dp-statsmodels": ("dp_statsmodels_peer.py", "posterior"),
}
#: The model is written for each of these.
WITH_MODEL = ("pymc_dp", "NUTS", "ADVI")
ORDER = (
    "pymc_dp", "pymc_dp, public covariates", "d3p", "NA-DPVI", "NAPSU-MQ", "dp-statsmodels", "diffprivlib", "NUTS",
    "ADVI",
)  # fmt: skip
#: Intervals that cover so many standard errors less than they say are not valid.
N_ERRORS = 2.0
Stored = dict[str, dict[str, dict[str, Any]]]


def lines_of_code(file: str, name: str) -> int:
    """Lines of a function without its docstring, comments and blank lines."""
    source = (Path(__file__).parent / file).read_text()
    node = next(
        n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name
    )
    body = node.body[1:] if ast.get_docstring(node) else node.body
    found = source.splitlines()[body[0].lineno - 1 : node.end_lineno]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in found)


def column(sets: dict[str, dict[str, Any]], name: str) -> np.ndarray:
    return np.array([s[name] for s in sets.values() if name in s])


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Of data sets; the error not below that of ten independent intervals in each."""
    least = np.sqrt(0.09 / 10)
    spread = max(values.std(ddof=1) if len(values) > 1 else 0.0, least)
    return float(values.mean()), float(spread / np.sqrt(len(values)))


def is_valid(sets: dict[str, dict[str, Any]]) -> bool:
    """Whether 90 % intervals cover as often as they say, as far as these data sets tell."""
    covered = column(sets, "coverage 0.9")
    if not len(covered) or len(covered) < len(sets):
        return False
    mean, error = mean_and_error(covered)
    return mean > 0.9 - N_ERRORS * error


def tables(stored: Stored) -> list[str]:
    """Both tables of the page."""
    return [*accuracy(stored), "", *effort(stored)]


def accuracy(stored: Stored) -> list[str]:
    """Coverage and width at each epsilon; the narrowest valid intervals are bold."""
    lines = [
        "| task | epsilon | method | coverage of 80 / 90 / 95 % | width | shift | MMD | prediction | seconds | sets |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task, epsilon in groups(stored):
        rows = {p: stored[key(task, p, epsilon)] for p in ORDER if key(task, p, epsilon) in stored}
        valid = {
            p: np.exp(np.log(column(s, "width")).mean()) for p, s in rows.items() if is_valid(s)
        }
        private = {p: w for p, w in valid.items() if p != "pymc_dp, public covariates"}
        best = min(private, key=lambda p: private[p], default="")
        lines += [row(task, epsilon, p, s, p == best) for p, s in rows.items()]
    return lines


def row(
    task: str, epsilon: float, peer: str, sets: dict[str, dict[str, Any]], is_best: bool
) -> str:
    covered = [column(sets, f"coverage {level}") for level in (0.8, 0.9, 0.95)]
    failed = sum("failed" in s for s in sets.values())
    coverage = " / ".join(f"{c.mean():.2f}" for c in covered) if len(covered[0]) else "no interval"
    width = column(sets, "width")
    shown = f"{np.exp(np.log(width).mean()):.2f}" if len(width) else ""
    shift = np.sqrt(np.mean(column(sets, "shift") ** 2)) if len(column(sets, "shift")) else np.nan
    others = [
        f"{column(sets, n).mean():{f}}" if len(column(sets, n)) else ""
        for n, f in (("mmd", ".2f"), ("lpd", "+.4f"))
    ]
    seconds = f"{np.median(column(sets, 'seconds')):.3g}"
    number = f"{len(sets)}" + (f", {failed} failed" if failed else "")
    name, shown = (f"**{peer}**", f"**{shown}**") if is_best else (peer, shown)
    at = "none" if np.isinf(epsilon) else f"{epsilon:g}"
    return f"| {task} | {at} | {name} | {coverage} | {shown} | {shift:.2f} | {others[0]} | {others[1]} | {seconds} | {number} |"


def effort(stored: Stored) -> list[str]:
    """Lines that a user writes."""
    lines = ["| method | lines of code |", "| --- | --- |"]
    for peer, place in WRITTEN.items():
        n = lines_of_code(*place)
        if peer in WITH_MODEL:
            n += lines_of_code("own_peers.py", "model_of")
        lines.append(f"| {peer} | {n} |")
    return lines


def key(task: str, peer: str, epsilon: float) -> str:
    return f"{task} | {peer} | {epsilon:g}"


def groups(stored: Stored) -> list[tuple[str, float]]:
    """Tasks and epsilons, in order."""
    found = {(k.split(" | ")[0], float(k.split(" | ")[2])) for k in stored}
    return sorted(found)
