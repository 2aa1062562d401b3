"""Whether the term of a record depends on its position among the others, or on how many there are.

Under substitution the number of records is public, and each keeps its position. Under add/remove both are
private: if one record leaves, those after it move up by one place, and a term such as
``a + b * (pt.arange(n) % 2)`` changes for all of them. So a likelihood with such terms has no bounded
sensitivity, and every door that spends calls `check_neighbours` with the adjacency of its budget.

Arrays with a row for each record move with their records. A column that NumPy made from positions
(``np.arange(n) % 2``) looks like any other: it counts as data of the records.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from pytensor.graph.basic import Variable

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import downstream, interpreted, upstream, value_inputs


def check_neighbours(likelihood: Any, adjacency: str) -> None:
    """Raise UnsupportedModel if under add/remove one record would change the terms of the others."""
    if adjacency == "add_remove" and (found := getattr(likelihood, "by_position", ())):
        raise UnsupportedModel(
            f"{found[0]} depends on the number of rows, or on their positions (len(y), x.shape[0], pt.arange, an array in "
            "public= with a row for each record). Under add/remove both are private: removing one record would change the terms of all "
            "others. Use public numbers, make what differs between records a pm.Data (not in public=), or use adjacency='substitute', "
            "where the number of records is public. Nothing was accessed."
        )


def depends_on_position(
    of_rows: Variable, index: Variable, data: Set[Variable], label: np.ndarray
) -> bool:
    """Whether rows of a log-likelihood depend on their index, other than by `data`, the parameters and rows of arrays.

    What depends on the index alone is computed for all rows, and again with the index of the first row that has the
    same place in its record. If both agree, the term of a row is one function, the same for all records, of the
    parameters, its own data and its place in its record.
    """
    varying = downstream([of_rows], data)
    indexed = downstream([of_rows], [index]) - varying
    nodes = {v.owner for v in varying & upstream([of_rows]) if v.owner is not None}
    used = {v for node in nodes for v in value_inputs(node) if v in indexed}
    function = interpreted([index], [*used, *(indexed & {of_rows})])
    pairs = zip(function(np.arange(len(label))), function(_first_in_same_place(label)), strict=True)
    return not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def _first_in_same_place(label: np.ndarray) -> np.ndarray:
    """For each row, the first of all rows that are as many rows after the beginning of their record."""
    order = np.argsort(label, kind="stable")
    begins = np.concatenate([[True], np.diff(label[order]) != 0])
    place = np.empty(len(label), dtype=np.int64)
    place[order] = np.arange(len(label)) - np.maximum.accumulate(
        np.where(begins, np.arange(len(label)), 0)
    )
    _, first, inverse = np.unique(place, return_index=True, return_inverse=True)
    return first[inverse]


def has_row_numbers(array: np.ndarray) -> bool:
    """Whether an array is 0, 1, 2, ... or 1, 2, 3, ...: positions, which others keep only if the last record leaves."""
    if (
        array.ndim == 0
        or array.size != len(array)
        or array.size < 3
        or array.dtype.kind not in "iu"
    ):
        return False
    return array.flat[0] in (0, 1) and bool((np.diff(array.ravel().astype(np.int64)) == 1).all())
