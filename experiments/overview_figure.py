"""Time and accuracy against the number of records: the figure of docs/benchmarks.md.

It is of what other scripts have stored: ``out_of_core.json``, ``scores_experiments.json``, ``limits.json`` (forecasts
for the same logistic model with four coefficients), and ``tests/benchmarks/results.json``.
"""

import json

from pathlib import Path

import limits
import numpy as np
import scores_experiments

from runner import save_picture

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "_static" / "overview.png"
#: Settings of ``scores_experiments.py`` that differ in nothing but the number of records, at epsilon = 1.
MEASURED = ("logistic_300", "logistic_1000", "logistic_3000", "logistic_20000")
#: Settings of ``out_of_core.py``.
DISK = ("1e7", "1e8")


def stored() -> dict[str, dict]:
    """Everything that is drawn, from the files of the experiments."""
    scores, forecasts = scores_experiments.EXPERIMENT.stored(), limits.EXPERIMENT.stored()
    disk = json.loads((HERE / "out_of_core.json").read_text())
    table = json.loads((HERE.parent / "tests" / "benchmarks" / "results.json").read_text())
    penalty = table["cost"]["tables"]["microseconds"]["DPPenalty"]
    return {
        "sizes": {name: scores_experiments.SETTINGS[name].n_records for name in MEASURED},
        "widths": {name: float(np.mean(scores[name]["ratio"])) for name in MEASURED},
        "seconds": {name: float(np.median(scores[name]["seconds"])) for name in MEASURED},
        "disk": {n: sum(disk[n][k] for k in ("build", "release", "sample")) for n in DISK},
        "pass": dict(zip(disk["growth"]["n"], disk["growth"]["seconds"])),
        "penalty": {n: penalty[f"N = {n}, d = 20"] * 1e-6 for n in ("1e4", "1e5", "1e6")},
        "forecast": {
            f"{e:g}": [r for _, r in limits.lines(forecasts)[4, e]] for e in limits.EPSILONS
        },
    }


def wider(ratios: list[float]) -> np.ndarray:
    """By how many per cent a posterior is wider than the one without privacy."""
    return 100 * (np.asarray(ratios) - 1)


def caption(found: dict[str, dict]) -> str:
    """The numbers that stand below the figure."""
    ratios = dict(zip(limits.RECORDS, wider(found["forecast"]["1"])))
    few, many = MEASURED[0], MEASURED[-1]
    small, large = wider([found["widths"][few], found["widths"][many]])
    return (
        f"At epsilon = 1 the forecast is {ratios[300]:.0f} % with 300 records, {ratios[10_000]:.1f} % with 10 000 and "
        f"{ratios[100_000]:.2f} % with 100 000. Measured are {small:.0f} % with 300 and {large:.1f} % with 20 000. "
        f"An analysis takes {found['seconds'][few]:.0f} s with 300 records, {found['seconds'][many]:.0f} s with 20 000, "
        f"and {found['disk']['1e8']:.0f} s with 1e8 records on disk."
    )


def figure(found: dict[str, dict]):
    """Two panels: seconds, and width, against the number of records."""
    from matplotlib import pyplot as plt

    fig, (left, right) = plt.subplots(ncols=2, figsize=(10, 4.2), layout="constrained")
    sizes = list(found["sizes"].values())
    left.plot(sizes, [*found["seconds"].values()], "o-", color="C0")
    left.plot([1e7, 1e8], [*found["disk"].values()], "s", color="C0", mfc="white")
    left.plot([*found["pass"]], [*found["pass"].values()], "^-", color="C2")
    left.plot([float(n) for n in found["penalty"]], [*found["penalty"].values()], "v-", color="C1")
    left.annotate("analysis: release and\n1200 draws, 4 coefficients", (250, 40), color="C0")
    left.annotate("records on disk\n(20, 4 coefficients)", (1.5e6, 200), color="C0")
    left.annotate("sum of clipped scores,\nrecords on disk", (1.3e6, 4e-3), color="C2")
    left.annotate("one decision on all\nrecords (20 coefficients)", (3e4, 1.7e-4), color="C1")
    left.set(xscale="log", yscale="log", ylabel="seconds", title="Time", ylim=(1e-4, 1e3))

    for k, (epsilon, ratios) in enumerate(found["forecast"].items()):
        label = f"forecast, epsilon = {epsilon}"
        right.plot(limits.RECORDS, wider(ratios), color=f"C{k + 3}", label=label)
    measured = wider([*found["widths"].values()])
    right.plot(sizes, measured, "o", color="C4", label="measured, epsilon = 1")
    right.set(xscale="log", yscale="log", ylabel="wider than without privacy, %", title="Accuracy")
    right.legend(frameon=False)
    right.yaxis.set_major_formatter("{x:g}")
    for ax in (left, right):
        ax.set_xlabel("records")
        ax.spines[["top", "right"]].set_visible(False)
    return fig


if __name__ == "__main__":
    numbers = stored()
    save_picture(figure(numbers), PICTURE, numbers)
    print(caption(numbers))
