"""Tables of what run_peers.py has stored."""

from __future__ import annotations

import ast

from collections.abc import Callable
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
#: Data sets that are enough to tell.
FEWEST = 10
#: Methods whose intervals do not compete: they know the covariates, or all data.
NOT_COMPARED = ("pymc_dp, public covariates", "NUTS", "ADVI")
#: Of the tables of all tasks.
HEAD = (
    "| task | method | coverage | width | widest | shift | MMD | density | seconds | sets |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
#: Numbers of the data sets of one method, None where there is none; and of all methods.
Sets = dict[str, list[Any]]
Stored = dict[str, Sets]


def lines_of_code(file: str, name: str) -> int:
    """Lines of a function without its docstring, comments and blank lines."""
    source = (Path(__file__).parent / file).read_text()
    node = next(
        n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name
    )
    body = node.body[1:] if ast.get_docstring(node) else node.body
    found = source.splitlines()[body[0].lineno - 1 : node.end_lineno]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in found)


def column(sets: Sets, name: str) -> np.ndarray:
    return np.array([value for value in sets.get(name, ()) if value is not None])


def n_sets(sets: Sets) -> int:
    return len(column(sets, "seconds"))


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Of data sets; the error not below that of ten independent intervals in each."""
    least = np.sqrt(0.09 / 10)
    spread = max(values.std(ddof=1) if len(values) > 1 else 0.0, least)
    return float(values.mean()), float(spread / np.sqrt(len(values)))


def is_valid(sets: Sets) -> bool:
    """Whether 90 % intervals cover as often as they say, as far as these data sets tell."""
    covered = column(sets, "coverage 0.9")
    if len(covered) < max(n_sets(sets), FEWEST):
        return False
    mean, error = mean_and_error(covered)
    return mean > 0.9 - N_ERRORS * error


def tables(stored: Stored) -> list[str]:
    """All tables."""
    by_task = sorted({k.split(" | ")[0] for k in stored})
    tables = [at_one(stored, by_task), without_privacy(stored, by_task), at_all(stored, by_task)]
    if "noisy_regression" in by_task:
        name = "RMSE of both slopes / coverage of 95 %"
        tables.append(by_epsilon(stored, "noisy_regression", name, error_and_coverage))
    if "adult_income" in by_task:
        name = "accuracy / calibration error / log predictive density"
        tables.append(by_epsilon(stored, "adult_income", name, prediction))
    return [line for table in (*tables, effort()) for line in (*table, "")][:-1]


def cells(stored: Stored, task: str, peer: str, epsilon: float) -> Sets | None:
    """Data sets of a peer; those without privacy are at all epsilons."""
    for e in (epsilon, np.inf):
        if (found := stored.get(f"{task} | {peer} | {e:g}")) is not None:
            return found
    return None


def at_one(stored: Stored, tasks: list[str]) -> list[str]:
    """All private results at epsilon = 1."""
    lines = [*HEAD]
    for task in tasks:
        found = private(stored, task, 1.0)
        best = narrowest(found)
        for peer, sets in found.items():
            name = f"**{peer}**" if peer == best else peer
            lines.append(f"| {task} | {name} | " + " | ".join(measured(sets)) + " |")
    return lines


def private(stored: Stored, task: str, epsilon: float) -> dict[str, Sets]:
    """Results of each method that has some."""
    return {p: s for p in ORDER if (s := stored.get(f"{task} | {p} | {epsilon:g}")) is not None}


def narrowest(found: dict[str, Sets]) -> str:
    """Of the methods to which covariates are private, the one with the narrowest valid intervals."""
    widths = {p: width(s) for p, s in found.items() if p not in NOT_COMPARED and is_valid(s)}
    return min(widths, key=lambda p: widths[p], default="")


def at_all(stored: Stored, tasks: list[str]) -> list[str]:
    """Coverage and width of all methods that have intervals, at all epsilons."""
    by_place = {
        (task, e): {p: s for p, s in private(stored, task, e).items() if len(column(s, "width"))}
        for task in tasks
        for e in epsilons_of(stored, task)
    }
    peers = [p for p in ORDER if any(p in found for found in by_place.values())]
    lines = [
        "| coverage of 90 % / width | epsilon | " + " | ".join(peers) + " |",
        "| --- " * (len(peers) + 2) + "|",
    ]
    for (task, e), found in by_place.items():
        best = narrowest(found)
        shown = {p: f"{mean(s, 'coverage 0.9'):.2f} / {short(width(s))}" for p, s in found.items()}
        row = [f"**{shown[p]}**" if p == best else shown.get(p, "") for p in peers]
        lines.append(f"| {task} | {e:g} | " + " | ".join(row) + " |")
    return lines


def epsilons_of(stored: Stored, task: str) -> list[float]:
    found = {float(k.split(" | ")[2]) for k in stored if k.startswith(f"{task} |")}
    return sorted(found - {np.inf})


def without_privacy(stored: Stored, tasks: list[str]) -> list[str]:
    """The same without privacy; and how often intervals of the exact posterior cover the truth, in all data sets."""
    lines = [*HEAD]
    for task in tasks:
        exact: dict[int, float] = {}
        for key in stored:
            if key.startswith(f"{task} |"):
                known = enumerate(stored[key].get("covers itself", ()))
                exact |= {seed: value for seed, value in known if value is not None}
        if exact:
            covered = f"90 %: {np.mean([*exact.values()]):.2f}"
            lines.append(
                f"| {task} | exact posterior | {covered} | 1 | 1 | 0 | 0 | 0 |  | {len(exact)} |"
            )
        for peer in ("NUTS", "ADVI"):
            if (sets := stored.get(f"{task} | {peer} | inf")) is not None:
                lines.append(f"| {task} | {peer} | " + " | ".join(measured(sets)) + " |")
    return lines


def measured(sets: Sets) -> list[str]:
    """Columns of one method; seconds are those of the first data set."""
    has_interval = len(column(sets, "width")) > 0
    shown = ["no interval", "", ""]
    if has_interval:
        parts = [f"{mean(sets, f'coverage {level}'):.2f}" for level in (0.8, 0.9, 0.95)]
        shown = [" ".join(parts), short(width(sets)), short(mean(sets, "widest"))]
    shown.append(short(np.sqrt(np.mean(column(sets, "shift") ** 2))))
    shown.append(f"{mean(sets, 'mmd'):.2f}" if has_interval else "")
    density = column(sets, "lpd")
    of_new = (
        "" if not len(density) else "< -10" if density.mean() < -10 else f"{density.mean():+.4f}"
    )
    seconds = column(sets, "seconds")[0]
    return [
        *shown,
        of_new,
        f"{seconds:.0f}" if seconds > 10 else f"{seconds:.2g}",
        f"{n_sets(sets)}",
    ]


def short(value: float) -> str:
    """With two decimals, unless it is of no use."""
    return f"{value:.2f}" if value < 100 else "> 100"


def by_epsilon(stored: Stored, task: str, title: str, shown: Callable[[Sets], str]) -> list[str]:
    """One task: a row for each method, a column for each epsilon."""
    epsilons = epsilons_of(stored, task)
    lines = [
        f"| {title} | " + " | ".join(f"epsilon = {e:g}" for e in epsilons) + " |",
        "| --- " * (len(epsilons) + 1) + "|",
    ]
    for peer in ORDER:
        found = [cells(stored, task, peer, e) for e in epsilons]
        if any(found):
            lines.append(f"| {peer} | " + " | ".join(shown(s) if s else "" for s in found) + " |")
    return lines


def error_and_coverage(sets: Sets) -> str:
    error = np.sqrt(np.mean(column(sets, "error") ** 2))
    shown = f"{error:.3f}" if error < 100 else "> 100"
    return f"{shown} / {mean(sets, 'coverage 0.95'):.2f}"


def prediction(sets: Sets) -> str:
    return (
        f"{mean(sets, 'accuracy'):.3f} / {mean(sets, 'calibration'):.3f} / {mean(sets, 'lpd'):+.4f}"
    )


def width(sets: Sets) -> float:
    """Geometric mean, over coefficients and data sets, of the ratio of interval widths."""
    return float(np.exp(np.log(column(sets, "width")).mean()))


def mean(sets: Sets, name: str) -> float:
    return float(column(sets, name).mean())


def effort() -> list[str]:
    """Lines that a user writes."""
    lines = ["| method | lines of code |", "| --- | --- |"]
    for peer, place in WRITTEN.items():
        n = lines_of_code(*place)
        if peer in WITH_MODEL:
            n += lines_of_code("own_peers.py", "model_of")
        lines.append(f"| {peer} | {n} |")
    return lines
