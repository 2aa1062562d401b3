"""Entries of the table of accepted and refused models, and their data: see `test_model_table`.

Each entry adds a model to the one on the context stack. Data have one row per record; `public` is what
a user would declare with ``public=``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm

N = 14  # records, a length that nothing else has
RNG = np.random.default_rng(17)
X = RNG.normal(size=(N, 3))
Z = RNG.normal(size=N)
Y = RNG.normal(size=N)
Y2 = RNG.normal(size=(N, 2))
POSITIVE = RNG.gamma(2.0, size=N) + 0.1
UNIT = RNG.uniform(0.05, 0.95, size=N)
BINARY = RNG.integers(2, size=N)
COUNTS = RNG.integers(1, 6, size=N)
LEVELS = np.arange(N) % 3
PANEL = RNG.normal(size=(N, 5))
POINTS = np.linspace(-0.5, 1.5, 30)
CURVE = np.exp(-(POINTS**2))
KNOTS = np.array([-1.2, -0.4, 0.1, 0.9])
GROUP_DATA = np.array([0.3, -0.7, 1.9])

Data = dict[str, np.ndarray]


@dataclass(frozen=True)
class Entry:
    """A model, and the refusal that is expected of it: none if it is accepted."""

    name: str
    fill: Callable[[Data], Any]
    data: Data
    refused: str | None = None
    public: list = field(default_factory=list)
    records: Any = None
    adjacency: str = "substitute"

    def build(self, data: Data | None = None) -> pm.Model:
        """The model of these data, or of its own."""
        with pm.Model() as model:
            self.fill({name: array.copy() for name, array in (data or self.data).items()})
        return model


TABLE: list[Entry] = []


def entry(
    name: str, *, refused: str | None = None, public: list | None = None, records=None, adjacency="substitute", **data
):  # fmt: skip
    def register(fill):
        TABLE.append(Entry(name, fill, data, refused, public or [], records, adjacency))
        return fill

    return register


PRIOR, POTENTIAL = "the prior of .* depends on data", "the potential .* depends on data"
INITIAL, POSITION = (
    "the initial value of .* depends on data",
    "depends on the number of rows, or on their positions",
)
ALL, SEVERAL, WHOLE = "depends on all of", "reach several records", "works on all rows at once"


def basis_of(gp, x):
    phi, sd = gp.prior_linearized(x)
    return phi @ (pm.Normal("coefficients", size=gp.n_basis_vectors) * sd)


def hsgp(length, m=4):
    return pm.gp.HSGP(m=[m], L=[3.0], cov_func=pm.gp.cov.ExpQuad(1, ls=length))
