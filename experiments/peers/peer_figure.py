"""Width of intervals against epsilon, of private regressions on Adult, as a figure.

    python experiments/peers/peer_figure.py

It draws what ``run_peers.py`` has stored.
"""

from __future__ import annotations

import hashlib
import json
import sys

from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from peer_tables import cells, is_valid, width  # noqa: E402

PICTURE = HERE.parents[1] / "docs" / "_static" / "peers.png"
EPSILONS = (0.1, 0.3, 0.5, 1.0)
COLOURS = {"pymc_dp": "C0", "NAPSU-MQ": "C1", "d3p": "C2"}


def stored() -> dict[str, list[tuple[float, float, bool]]]:
    """For each method epsilon, width, and whether the intervals cover as often as they say."""
    results = json.loads((HERE / "peers.json").read_text())
    return {
        peer: [
            (e, round(width(sets), 3), is_valid(sets))
            for e in EPSILONS
            if (sets := cells(results, "adult_reduced", peer, e))
        ]
        for peer in COLOURS
    }


def digest(found: dict) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def draw(found: dict[str, list[tuple[float, float, bool]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for peer, points in found.items():
        axes.loglog(
            [e for e, _, _ in points], [w for _, w, _ in points], color=COLOURS[peer], label=peer
        )
        for e, w, is_covered in points:
            axes.plot(e, w, "o", color=COLOURS[peer], mfc=COLOURS[peer] if is_covered else "white")
    axes.axhline(1, color="grey", lw=0.8, ls="--")
    axes.text(
        EPSILONS[-1], 1.03, "without privacy", color="grey", ha="right", va="bottom", fontsize=8
    )
    axes.set(
        xlabel="epsilon (one record is replaced, delta = 1e-6)", ylabel="width of 90 % intervals"
    )
    axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150, metadata={"Comment": digest(found)})


if __name__ == "__main__":
    draw(stored())
