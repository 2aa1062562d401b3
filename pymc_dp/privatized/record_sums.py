"""Split a function of sums over records into the terms of each record and a function of the sums.

`split_into_sums` walks from a log-probability to the records. At a sum over records, each summand of which is a
function of one record (by `RowWalk`), the summands become terms, and the sum becomes an input of the outer
function. If the walk reaches a record without passing a sum, the function does not depend on records through
sums only.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytensor.scalar as ps
import pytensor.tensor as pt

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Dot

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import downstream
from pymc_dp.model.graphs.index_entries import Blocked, subtensor_entries
from pymc_dp.model.graphs.parameter_checks import INCREMENTS, SELECTIONS
from pymc_dp.model.graphs.row_subsets import RowWalk


@dataclass(frozen=True)
class SumDecomposition:
    """A scalar as a function `outer` of a sum over records.

    `terms` is a matrix of float64 with a row for each record, a function of that record (and of other variables).
    `sums` is the input of `outer` that replaces ``terms.sum(axis=0)``: no record is an ancestor of `outer`.
    """

    terms: Variable
    sums: Variable
    outer: Variable


def split_into_sums(
    total: Variable, records: Sequence[Variable], n_records: int
) -> SumDecomposition:
    """Split a scalar into terms and an outer function; UnsupportedModel if no sums over records are found.

    The records are inputs of its graph, of known shapes, with the records on their leading axis.
    """
    if n_records == 1:  # any function is one of a single term
        sums = pt.vector("sums", shape=(1,))
        return SumDecomposition(total.astype("float64").reshape((1, 1)), sums, sums[0])
    split = _Split(total, records, n_records)
    try:
        outer = split(total)
    except Blocked as error:
        raise UnsupportedModel(
            f"the observed variables do not appear to be functions of sums over records: {error} combines "
            "records in another way. Write the statistic as a sum (or mean, matrix product, count) over the "
            "leading axis of a term for each record; or make the terms a pm.Deterministic, of which the "
            "release uses the sum over the leading axis only, and pass its name as contributions=."
        ) from None
    shapes = [part.type.shape for part in split.parts]
    ends = [0]
    for shape in shapes:
        ends.append(ends[-1] + math.prod(shape))
    sums = pt.vector("sums", shape=(ends[-1],), dtype="float64")
    pieces = {
        part: sums[a:b].reshape(shape)
        for part, shape, a, b in zip(split.parts, shapes, ends[:-1], ends[1:], strict=True)
    }
    matrices = [terms.reshape((n_records, -1)).astype("float64") for terms in split.terms]
    return SumDecomposition(
        pt.concatenate(matrices, axis=1), sums, graph_replace([outer], pieces, strict=False)[0]
    )


def _is_table(node: Apply) -> bool:
    return isinstance(node.op, INCREMENTS) and not node.op.set_instead_of_inc


class _Rows(RowWalk):
    """Walk to the rows of arrays computed from records."""

    def __init__(self, index: Variable, records: Sequence[Variable]) -> None:
        super().__init__(index)
        self._records = set(records)

    def _make(self, variable: Variable, axis: int, index: Variable) -> Variable:
        if variable in self._records and index is self._index and axis == 0:
            return pt.tensor(dtype=variable.dtype, shape=(None, *variable.type.shape[1:]))
        return super()._make(variable, axis, index)


class _Split:
    """Rebuild a graph with inputs in place of its sums over records."""

    def __init__(self, total: Variable, records: Sequence[Variable], n_records: int) -> None:
        self._records, self._n = list(records), n_records
        self._dependent = downstream([total], records)
        self._made: dict[Variable, Variable] = {}
        self.terms: list[Variable] = []  # (n_records, ...)
        self.parts: list[Variable] = []  # inputs that replace their sums

    def __call__(self, variable: Variable) -> Variable:
        if variable not in self._dependent:
            return variable
        if variable not in self._made:
            self._make(variable)
        return self._made[variable]

    def _make(self, variable: Variable) -> None:
        node = variable.owner
        if node is None:
            raise Blocked("")
        terms = None if None in variable.type.shape else self._terms(node)
        if terms is not None:
            self.terms.append(terms)
            self.parts.append(pt.tensor(dtype="float64", shape=variable.type.shape))
            value = self.parts[-1].astype(variable.dtype)
            self._made[variable] = value + node.inputs[0] if _is_table(node) else value
            return
        try:
            inputs = [self(v) for v in node.inputs]
        except Blocked as error:
            raise Blocked(str(error) or str(node.op)) from None
        self._made.update(zip(node.outputs, node.op.make_node(*inputs).outputs, strict=True))

    def _has_rows(self, variable: Variable, axis: int) -> bool:
        """Whether entry i along an axis depends on record i only."""
        if variable.type.shape[axis] != self._n:
            return False
        index = pt.vector("index", dtype="int64")
        try:
            rows = _Rows(index, self._records)(variable, axis, index)
        except Blocked:
            return False
        return set(ancestors([rows])).isdisjoint(self._records)

    def _terms(self, node: Apply) -> Variable | None:
        """Terms of each record in the output of a node; None unless it is a sum over records."""
        if isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, ps.Add):
            return self._summands(node)
        if isinstance(node.op, Dot):
            return self._products(node)
        if _is_table(node):
            return self._counts(node)
        if isinstance(node.op, SELECTIONS):
            return self._selected(node)
        return None

    def _summands(self, node: Apply) -> Variable | None:
        (x,) = node.inputs
        axes = range(x.ndim) if node.op.axis is None else node.op.axis
        axis = next((k for k in axes if self._has_rows(x, k)), None)
        if axis is None:
            return None
        others = [k + (k < axis) for k in axes if k != axis]
        rows = pt.moveaxis(x, axis, 0)
        return rows.sum(axis=others) if others else rows

    def _products(self, node: Apply) -> Variable | None:
        left, right = node.inputs
        if not (self._has_rows(left, left.ndim - 1) and self._has_rows(right, 0)):
            return None
        left = pt.moveaxis(left, -1, 0)
        return pt.shape_padright(left, right.ndim - 1) * (
            right.dimshuffle(0, *["x"] * (left.ndim - 1), *range(1, right.ndim))
        )

    def _selected(self, node: Apply) -> Variable | None:
        """Entries of a sum as sums of the same entries of its terms, so that no others are computed."""
        x, *indices = node.inputs
        if x.owner is None or _is_table(x.owner) or not self._dependent.isdisjoint(indices):
            return None
        terms, entries = self._terms(x.owner), _entries(node, x, indices)
        # With index arrays next to slices, their axes may move to the front.
        if terms is None or len({isinstance(entry, slice) for entry in entries}) != 1:
            return None
        return terms[(slice(None), *entries)]

    def _counts(self, node: Apply) -> Variable | None:
        """``table[category_1, category_2].inc(weight)``: the term of a record is a table."""
        table, weight, *indices = node.inputs
        entries, shape = _entries(node, table, indices), table.type.shape
        is_sliced = not entries or any(isinstance(entry, slice) for entry in entries)
        if is_sliced or table in self._dependent:
            return None
        flat = _raveled(entries, shape)
        weight = weight + 0 * flat
        flat = flat + (0 * weight).astype("int64")
        axis = next((k for k in range(flat.ndim) if self._has_rows(flat, k)), None)
        if axis is None or not self._has_rows(weight, axis):
            return None
        size = math.prod(shape)
        rows = [pt.moveaxis(v, axis, 0).reshape((self._n, -1)) for v in (flat, weight)]
        places = pt.arange(self._n)[:, None] * size + rows[0]
        zeros = pt.zeros(self._n * size, dtype=table.dtype)
        return pt.inc_subtensor(zeros[places.ravel()], rows[1].ravel()).reshape((self._n, *shape))


def _raveled(entries: Sequence[Variable], shape: Sequence[int]) -> Variable:
    """Positions in a raveled array, from indices along each axis."""
    flat = pt.zeros((), dtype="int64")
    for entry, length in zip(entries, shape, strict=True):
        flat = flat * length + pt.switch(entry < 0, entry + length, entry)
    return flat


def _entries(node: Apply, x: Variable, indices: Sequence[Variable]) -> list[Any]:
    """The index expression; empty if unknown."""
    try:
        return subtensor_entries(node.op, x, indices)
    except Blocked:
        return []
