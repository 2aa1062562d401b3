"""Log-likelihoods at the last positions: a chain evaluates each state once, not in each of its decisions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class LatestValues:
    """Vectors at the last two positions that were asked for. Copies and pickles are empty: the vectors are private."""

    def __init__(self) -> None:
        self._found: dict[bytes, np.ndarray] = {}

    def __reduce__(self) -> tuple:
        return LatestValues, ()

    def at(self, theta: np.ndarray, compute: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The vector at a position: kept, or computed."""
        key = theta.tobytes()
        found = self._found.pop(key, None)
        self.keep(theta, compute(theta) if found is None else found)
        return self._found[key]

    def keep(self, theta: np.ndarray, values: np.ndarray) -> None:
        """Keep the vector at a position, and that of the position before."""
        self._found[theta.tobytes()] = values
        while len(self._found) > 2:
            del self._found[next(iter(self._found))]

    def forget(self, but: np.ndarray | None = None) -> None:
        """Keep nothing, or the vector at one position only."""
        kept = {} if but is None else {but.tobytes(): self._found.get(but.tobytes())}
        self._found = {key: values for key, values in kept.items() if values is not None}
