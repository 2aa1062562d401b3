"""A model that is a function of a block of records: made-up blocks, and which of its arrays are which columns.

The function is called with made-up columns, so that the model is built without private data. An array of the model
that has their rows is a column if it has a column's values: as it is, one column of a matrix, transposed, or with
another type of numbers. Whatever else has rows was computed in NumPy, and is refused: it would stay that of the
made-up block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.errors import UnsupportedModel

#: Types and trailing shapes of columns, by name.
Layout = Mapping[str, tuple[np.dtype, tuple[int, ...]]]

#: Rows of a made-up block, and least number of rows of one that is given.
_N_ROWS, _LEAST_ROWS = 192, 64
#: Floats of a made-up block lie between these: most likelihoods allow them.
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True)
class Take:
    """A column, some of its entries, or its transpose."""

    name: str
    entries: tuple[Any, ...] = ()
    transposes: bool = False

    def __call__(self, block: Mapping[str, np.ndarray]) -> np.ndarray:
        """Take it from a block."""
        found = block[self.name][self.entries]
        return found.T if self.transposes else found


def made_up_block(layout: Layout, n_rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns of random numbers: floats between 0.05 and 0.95, integers and booleans 0 or 1."""
    rng = np.random.default_rng(seed)
    block = {}
    for name, (dtype, shape) in layout.items():
        values = rng.uniform(_LOW, _HIGH, (n_rows, *shape))
        block[name] = (values if np.dtype(dtype).kind == "f" else values > 0.5).astype(dtype)
    return block


def model_of(function: Callable[..., Any], block: Mapping[str, np.ndarray]) -> pm.Model:
    """The model that a function builds for a block.

    Raises
    ------
    TypeError
        If the function does not take the columns as arguments, or does not return a model.
    """
    with pm.Model() as outer:
        found = function(**block)
    if found is None:
        found = outer
    if not isinstance(found, pm.Model):
        raise TypeError(
            f"The model function must build variables, or return a pm.Model; it returned a {type(found).__name__}."
        )
    return found


def column_of(array: np.ndarray, block: Mapping[str, np.ndarray], what: str) -> Take:
    """How an array of a model is taken from a block, given one that has distinct columns.

    Raises
    ------
    UnsupportedModel
        If it is no column of the block, or could be one of several.
    """
    found = [take for take in _takes(block) if _equals(take(block), array)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(block)
    if found:
        raise UnsupportedModel(
            f"{what} could be one of several columns of the data ({names}), which look the same in a block of made-up numbers: "
            "pass example=, made-up columns that differ."
        )
    raise UnsupportedModel(
        f"{what} has a row for each record, and is none of the columns of the data ({names}): it was computed from them in NumPy, "
        "or comes from outside of the model function. Compute it with pm.math inside of the model, where it is a function of each "
        "row, or add it to the columns."
    )


def _takes(block: Mapping[str, np.ndarray]) -> Iterator[Take]:
    for name, column in block.items():
        yield Take(name)
        if column.ndim == 1:
            yield Take(name, (slice(None), None))
        if column.ndim == 2:
            yield Take(name, transposes=True)
            if column.shape[1] > 1:
                yield from (Take(name, (slice(None), k)) for k in range(column.shape[1]))


def _equals(column: np.ndarray, array: np.ndarray) -> bool:
    if column.shape != array.shape:
        return False
    with np.errstate(all="ignore"):
        return bool(np.array_equal(column.astype(array.dtype), array))


def example_block(layout: Layout, example: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """A made-up block, or the one that was given, if it fits the columns."""
    if example is None:
        return made_up_block(layout, _N_ROWS)
    block = {str(name): np.array(column) for name, column in example.items()}
    shapes = {name: column.shape for name, column in block.items()}
    wanted = {name: shape for name, (_, shape) in layout.items()}
    if {n: s[1:] for n, s in shapes.items()} != wanted or len({s[:1] for s in shapes.values()}) > 1:
        raise ValueError(
            f"example must have the columns {wanted} (names and shapes of a row), with the same number of rows each; got the shapes {shapes}."
        )
    if min(s[0] for s in shapes.values()) < _LEAST_ROWS:
        raise ValueError(
            f"example must have at least {_LEAST_ROWS} made-up rows, got shapes {shapes}."
        )
    return {name: column.astype(layout[name][0]) for name, column in block.items()}
