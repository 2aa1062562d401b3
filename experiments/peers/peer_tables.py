"""Tables, and the figure, of what run_peers.py has stored."""

import ast

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from runner import save_picture, table

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parents[1] / "docs" / "_static" / "peers.png"
#: Functions that hold what a user of each peer writes, in a file.
WRITTEN = {
    "pymc_dp": ("own_peers", "pymc_dp", "model_of"),
    "NUTS": ("own_peers", "nuts", "model_of"),
    "ADVI": ("own_peers", "advi", "model_of"),
    "d3p": ("d3p_peer", "posterior"),
    "NA-DPVI": ("na_dpvi_peer", "posterior"),
    "NAPSU-MQ": ("napsu_mq_peer", "posterior"),
    "diffprivlib": ("diffprivlib_peer", "posterior"),
    "dp-statsmodels": ("dp_statsmodels_peer", "posterior"),
}
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
HEADS = "task method coverage width widest shift MMD density seconds sets".split()
#: Of the figure: values of epsilon, and colours.
EPSILONS = (0.1, 0.3, 0.5, 1.0)
COLOURS = {"pymc_dp": "C0", "NAPSU-MQ": "C1", "d3p": "C2"}
#: Numbers of the data sets of one method, None where there is none; and of all methods.
Sets = dict[str, list[Any]]
Stored = dict[str, Sets]


def lines_of_code(file: str, *names: str) -> int:
    """Lines of functions without docstrings, comments and blank lines."""
    source, total = (HERE / f"{file}.py").read_text(), 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = source.splitlines()[body[0].lineno - 1 : node.end_lineno]
            total += sum(bool(line.strip()) and line.strip()[0] != "#" for line in lines)
    return total


def column(sets: Sets, name: str) -> np.ndarray:
    return np.array([value for value in sets.get(name, ()) if value is not None])


def mean(sets: Sets, name: str) -> float:
    return float(column(sets, name).mean())


def root_mean_square(sets: Sets, name: str) -> float:
    return float(np.sqrt(np.mean(column(sets, name) ** 2)))


def width(sets: Sets) -> float:
    """Geometric mean, over coefficients and data sets, of the ratio of interval widths."""
    return float(np.exp(np.log(column(sets, "width")).mean()))


def is_valid(sets: Sets) -> bool:
    """Whether 90 % intervals cover as often as they say, as far as these data sets tell."""
    covered = column(sets, "coverage 0.9")
    if len(covered) < max(len(column(sets, "seconds")), FEWEST):
        return False
    # Not below that of ten independent intervals in each data set.
    spread = max(covered.std(ddof=1), np.sqrt(0.09 / 10))
    return bool(covered.mean() > 0.9 - N_ERRORS * spread / np.sqrt(len(covered)))


def short(value: float, digits: int = 2) -> str:
    """With some decimals, unless it is of no use."""
    return f"{value:.{digits}f}" if value < 100 else "> 100"


def measured(sets: Sets) -> list[str]:
    """Columns of one method; seconds are those of the first data set."""
    shown, discrepancy = ["no interval", "", ""], ""
    if len(column(sets, "width")):
        parts = [f"{mean(sets, f'coverage {level}'):.2f}" for level in (0.8, 0.9, 0.95)]
        shown = [" ".join(parts), short(width(sets)), short(mean(sets, "widest"))]
        discrepancy = f"{mean(sets, 'mmd'):.2f}"
    density, seconds = column(sets, "lpd"), column(sets, "seconds")
    of_new = ""
    if len(density):
        of_new = "< -10" if density.mean() < -10 else f"{density.mean():+.4f}"
    time = f"{seconds[0]:.0f}" if seconds[0] > 10 else f"{seconds[0]:.2g}"
    shown += [short(root_mean_square(sets, "shift")), discrepancy, of_new]
    return [*shown, time, f"{len(seconds)}"]


def error_and_coverage(sets: Sets) -> str:
    return f"{short(root_mean_square(sets, 'error'), 3)} / {mean(sets, 'coverage 0.95'):.2f}"


def prediction(sets: Sets) -> str:
    accuracy, calibration = (f"{mean(sets, name):.3f}" for name in ("accuracy", "calibration"))
    return f"{accuracy} / {calibration} / {mean(sets, 'lpd'):+.4f}"


def private(stored: Stored, task: str, epsilon: float) -> dict[str, Sets]:
    """Results of each method that has some."""
    return {p: s for p in ORDER if (s := stored.get(f"{task} | {p} | {epsilon:g}")) is not None}


def narrowest(found: dict[str, Sets]) -> str:
    """Of the methods to which covariates are private, the one with the narrowest valid intervals."""
    widths = {p: width(s) for p, s in found.items() if p not in NOT_COMPARED and is_valid(s)}
    return min(widths, key=lambda p: widths[p], default="")


def epsilons_of(stored: Stored, task: str) -> list[float]:
    found = {float(k.split(" | ")[2]) for k in stored if k.startswith(f"{task} |")}
    return sorted(found - {np.inf})


def at_one(stored: Stored, tasks: list[str]) -> list[str]:
    """All private results at epsilon = 1."""
    rows = []
    for task in tasks:
        found = private(stored, task, 1.0)
        best = narrowest(found)
        for peer, sets in found.items():
            rows.append([task, f"**{peer}**" if peer == best else peer, *measured(sets)])
    return table(HEADS, rows)


def without_privacy(stored: Stored, tasks: list[str]) -> list[str]:
    """The same without privacy; and how often intervals of the exact posterior cover the truth, in all data sets."""
    rows = []
    for task in tasks:
        exact: dict[int, float] = {}
        for key in stored:
            if key.startswith(f"{task} |"):
                known = enumerate(stored[key].get("covers itself", ()))
                exact |= {seed: value for seed, value in known if value is not None}
        if exact:
            covered = f"90 %: {np.mean([*exact.values()]):.2f}"
            rows.append([task, "exact posterior", covered, 1, 1, 0, 0, 0, "", len(exact)])
        found = private(stored, task, np.inf)
        rows += [[task, peer, *measured(sets)] for peer, sets in found.items()]
    return table(HEADS, rows)


def at_all(stored: Stored, tasks: list[str]) -> list[str]:
    """Coverage and width of all methods that have intervals, at all epsilons."""
    by_place = {
        (task, e): {p: s for p, s in private(stored, task, e).items() if len(column(s, "width"))}
        for task in tasks
        for e in epsilons_of(stored, task)
    }
    peers, rows = [p for p in ORDER if any(p in found for found in by_place.values())], []
    for (task, e), found in by_place.items():
        best = narrowest(found)
        shown = {p: f"{mean(s, 'coverage 0.9'):.2f} / {short(width(s))}" for p, s in found.items()}
        cells = [f"**{shown[p]}**" if p == best else shown.get(p, "") for p in peers]
        rows.append([task, f"{e:g}", *cells])
    return table(["coverage of 90 % / width", "epsilon", *peers], rows)


def by_epsilon(stored: Stored, task: str, title: str, shown: Callable[[Sets], str]) -> list[str]:
    """One task: a row for each method, a column for each epsilon; without privacy all are the same."""
    epsilons = epsilons_of(stored, task)
    columns = [private(stored, task, np.inf) | private(stored, task, e) for e in epsilons]
    rows = [
        [peer, *(shown(sets[peer]) if peer in sets else "" for sets in columns)]
        for peer in ORDER
        if any(peer in sets for sets in columns)
    ]
    return table([title, *(f"epsilon = {e:g}" for e in epsilons)], rows)


def tables(stored: Stored) -> list[str]:
    """All tables, the last one of the lines that a user writes."""
    tasks = sorted({k.split(" | ")[0] for k in stored})
    found = [part(stored, tasks) for part in (at_one, without_privacy, at_all)]
    for task, title, shown in (
        ("noisy_regression", "RMSE of both slopes / coverage of 95 %", error_and_coverage),
        ("adult_income", "accuracy / calibration error / log predictive density", prediction),
    ):
        found.append(by_epsilon(stored, task, title, shown))
    effort = [[peer, lines_of_code(*place)] for peer, place in WRITTEN.items()]
    found.append(table(["method", "lines of code"], effort))
    return [line for lines in found for line in (*lines, "")]


def drawn(stored: Stored) -> dict[str, list[tuple[float, float, bool]]]:
    """For each method epsilon, width on Adult, and whether the intervals cover as often as they say."""
    found: dict[str, list] = {peer: [] for peer in COLOURS}
    for e in EPSILONS:
        sets = private(stored, "adult_reduced", e)
        for peer in COLOURS.keys() & sets.keys():
            found[peer].append((e, round(width(sets[peer]), 3), is_valid(sets[peer])))
    return found


def figure(stored: Stored) -> None:
    """Width of intervals against epsilon."""
    from matplotlib import pyplot as plt

    picture, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    found = drawn(stored)
    for peer, points in found.items():
        colour = COLOURS[peer]
        axes.loglog(*zip(*[point[:2] for point in points]), color=colour, label=peer)
        for e, w, is_covered in points:
            axes.plot(e, w, "o", color=colour, mfc=colour if is_covered else "white")
    axes.axhline(1, color="grey", lw=0.8, ls="--")
    axes.annotate("without privacy", (1, 1.03), color="grey", ha="right", va="bottom", fontsize=8)
    axes.set(xlabel="epsilon (one record is replaced, delta = 1e-6)")
    axes.set(ylabel="width of 90 % intervals")
    axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_picture(picture, PICTURE, found)
