"""Draws of typical runs by each rule of adaptive composition: a table of ``docs/accounting.md``.

Nothing is sampled, and the noise is the same in each row. *Best* is the minimum over accountants for all accesses of the
run, which is valid if they are claimed at once. For runs with a filter it is the minimum over orders when the filter is
opened, which is not valid.
"""

import math

import numpy as np

from runner import Experiment, Options, Stored, table

from pymc_dp import Barker, Penalty
from pymc_dp.privacy import Decision, Gaussian, max_draws
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision
from pymc_dp.steps import Lazy

DELTA = 1e-6
EPSILONS = (1.0, 4.0)


def varying(rule: Penalty | Barker, laziness: float = 1.0) -> list:
    """Accesses of a draw, on average: a random walk in four dimensions, sensitivity 0.05 on average."""
    lengths = np.linalg.norm(np.random.default_rng(0).normal(size=(200, 4)), axis=1)
    distances = tuple((0.05 * lengths / lengths.mean()).tolist())
    family = PerProposalDecision(1.0, rule, None, laziness, distances)
    return [(family.at(d), 1 / len(distances)) for d in distances]


def runs(epsilon: float) -> dict[str, tuple[list, list, str]]:
    """Accesses of each draw, accesses before, and the accountant of the first column."""
    order = AdaptiveComposition.opened(epsilon, DELTA)

    def gaussian(part: float, times: int = 1) -> list:
        """Releases that take a part of the budget at the order."""
        scale = math.sqrt(order.price(Gaussian(1.0)) * times / part / order.limit)
        return [(Gaussian(scale), times)]

    penalty, lazy = Decision(Penalty(2.0), 0.05), Decision(Lazy(Penalty(2.0), 0.5), 0.05)
    start = gaussian(0.15, 24)
    small = [(Decision(Barker(), 0.02), 1)]
    return {
        "`DPPenalty`, noise 2, moves of one length": ([(penalty, 1)], [], "best"),
        "`DPPenalty`, noise 2, laziness 1/2": ([(lazy, 1)], [], "best"),
        "`DPPenalty`, noise 2, random walk": (varying(Penalty(2.0)), [], "rdp"),
        "`DPBarker`, moves of one length": ([(Decision(Barker(), 0.05), 1)], [], "best"),
        "`DPBarker`, random walk": (varying(Barker()), [], "rdp"),
        "`DPHMC`, 10 gradients (noise 60), penalty noise 2": ([(Gaussian(60.0), 10), (penalty, 1)], [], "rdp"),
        "`DPSGHMC`, 10 gradients of all records (noise 60)": ([(Gaussian(60.0), 10)], [], "best"),
        "start 15 %, sum 40 %, decisions": (small, [*start, *gaussian(0.4)], "rdp"),
        "start 15 %, sum 70 %, decisions": (small, [*start, *gaussian(0.7)], "rdp"),
    }  # fmt: skip


def run(name: str, seed: int, options: Options) -> Stored:
    cells = []
    for epsilon in EPSILONS:
        each, before, least = runs(epsilon)[name]
        terms = {"epsilon": epsilon, "delta": DELTA, "other_accesses": before}
        by = [AdaptiveComposition.opened(epsilon, DELTA, a).reading for a in ("best", "gaussian")]
        most, *others = (max_draws(each, accountant=a, **terms) for a in (least, *by))
        cells += [f"{most:.0f}", *(f"{k:.0f} ({k / most - 1:+.1%})" for k in others)]
    return {"cells": cells}


def tables(stored: Stored) -> list[str]:
    heads = [f"{rule}, epsilon {e:g}" for e in EPSILONS for rule in ("best", "order", "GDP")]
    rows = [[name, *found["cells"]] for name, found in stored.items()]
    return table(["run", *heads], rows, "---:")


SETTINGS = dict.fromkeys(runs(1.0), 0)
EXPERIMENT = Experiment(__file__, run, SETTINGS, tables, small=tuple(SETTINGS)[:2])

if __name__ == "__main__":
    EXPERIMENT.main()
