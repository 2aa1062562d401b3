"""Functions of sums over records, taken apart: what each record adds, what becomes of the sums.

`additive` walks from a log-probability down to the records. Where it meets a sum over records, each
summand of which is a function of one record (told by the walk of `RowWalk`), the summands become
terms, and the sum becomes an input of what is left. If it reaches a record without having met a
sum, records are joined in another way.
"""

from __future__ import annotations

import math

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytensor.scalar as ps
import pytensor.tensor as pt

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Dot

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.indexing import Blocked, RowWalk, subtensor_entries
from pymc_dp.model.parameter_checks import INCREMENTS, SELECTIONS
from pymc_dp.model.roots import downstream, is_array_root, stored

__all__ = ["Additive", "additive", "with_constants"]


@dataclass(frozen=True)
class Additive:
    """A scalar, as a function of a sum over records.

    Attributes
    ----------
    terms : Variable
        Matrix of float64 with a row for each record, a function of this record (and of what is not
        a record).
    sums : Variable
        Vector: the input of `outer` that stands for ``terms.sum(axis=0)``.
    outer : Variable
        Scalar. No record is among its ancestors.
    """

    terms: Variable
    sums: Variable
    outer: Variable


def with_constants(
    graphs: Sequence[Variable], known: Mapping[Variable, Variable] | None = None
) -> list[Variable]:
    """Simplified graphs with shared variables as constants, so that shapes are known.

    Parameters
    ----------
    graphs : sequence of Variable
    known : mapping of Variable to Variable, optional
        Further replacements, for instance inputs of known shape.
    """
    new = dict(known or {})
    for variable in ancestors(graphs):
        if is_array_root(variable) and not isinstance(variable, Constant) and variable not in new:
            new[variable] = pt.constant(stored(variable).copy())
    # Nodes are made anew, since they remember the shapes that were known when they were made.
    for node in toposort(graphs):
        inputs = [new.get(v, v) for v in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            made = node.op.make_node(*inputs).outputs
            new.update((v, w) for v, w in zip(node.outputs, made, strict=True) if v not in new)
    return rewrite_graph([new.get(g, g) for g in graphs], include=("ShapeOpt", "canonicalize"))


def additive(total: Variable, records: Sequence[Variable], n_records: int) -> Additive:
    """Take a scalar apart.

    Parameters
    ----------
    total : Variable
        Scalar, from `with_constants`.
    records : sequence of Variable
        Inputs of its graph of known shapes, that hold the records on their leading axis.
    n_records : int

    Raises
    ------
    UnsupportedModel
        If it is no function of sums over records, as far as can be told.
    """
    if n_records == 1:  # any function is one of a single term
        sums = pt.vector("sums", shape=(1,))
        return Additive(total.astype("float64").reshape((1, 1)), sums, sums[0])
    split = _Split(total, records, n_records)
    try:
        outer = split(total)
    except Blocked as error:
        raise UnsupportedModel(
            f"what is observed is no function of sums over records, as far as can be told: {error} "
            "joins records in another way. Write the statistic as a sum (or mean, matrix product, "
            "count) over the leading axis of something that is computed for each record; or name "
            "what is computed for each record, a pm.Deterministic of which the release uses the "
            "sum over the leading axis only, with terms=."
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
    return Additive(
        pt.concatenate(matrices, axis=1), sums, graph_replace([outer], pieces, strict=False)[0]
    )


def _is_table(node: Apply) -> bool:
    return isinstance(node.op, INCREMENTS) and not node.op.set_instead_of_inc


class _Rows(RowWalk):
    """Rows of what is computed from records."""

    def __init__(self, index: Variable, records: Sequence[Variable]) -> None:
        super().__init__(index)
        self._records = set(records)

    def _make(self, variable: Variable, axis: int, index: Variable) -> Variable:
        if variable in self._records and index is self._index and axis == 0:
            return pt.tensor(dtype=variable.dtype, shape=(None, *variable.type.shape[1:]))
        return super()._make(variable, axis, index)


class _Split:
    """What is left of a graph, with inputs in place of its sums over records."""

    def __init__(self, total: Variable, records: Sequence[Variable], n_records: int) -> None:
        self._records, self._n = list(records), n_records
        self._dependent = downstream([total], records)
        self._made: dict[Variable, Variable] = {}
        self.terms: list[Variable] = []  # (n_records, ...)
        self.parts: list[Variable] = []  # stand for their sums

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
        """Whether each entry along an axis is a function of one record, in their order."""
        if variable.type.shape[axis] != self._n:
            return False
        index = pt.vector("index", dtype="int64")
        try:
            rows = _Rows(index, self._records)(variable, axis, index)
        except Blocked:
            return False
        return set(ancestors([rows])).isdisjoint(self._records)

    def _terms(self, node: Apply) -> Variable | None:
        """What each record adds to the output of a node, if this is a sum over records."""
        if isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, ps.Add):
            (x,) = node.inputs
            axes = range(x.ndim) if node.op.axis is None else node.op.axis
            for axis in axes:
                if self._has_rows(x, axis):
                    others = [k + (k < axis) for k in axes if k != axis]
                    rows = pt.moveaxis(x, axis, 0)
                    return rows.sum(axis=others) if others else rows
        elif isinstance(node.op, Dot):
            left, right = node.inputs
            if self._has_rows(left, left.ndim - 1) and self._has_rows(right, 0):
                left = pt.moveaxis(left, -1, 0)
                return pt.shape_padright(left, right.ndim - 1) * (
                    right.dimshuffle(0, *["x"] * (left.ndim - 1), *range(1, right.ndim))
                )
        elif _is_table(node):
            return self._counts(node)
        elif isinstance(node.op, SELECTIONS):
            return self._selected(node)
        return None

    def _selected(self, node: Apply) -> Variable | None:
        """Entries of a sum: those of its terms, so that nothing is added up in vain."""
        x, *indices = node.inputs
        if x.owner is None or not self._dependent.isdisjoint(indices):
            return None
        terms = self._terms(x.owner) if not _is_table(x.owner) else None
        if terms is None:
            return None
        try:
            entries = subtensor_entries(node.op, x, indices)
        except Blocked:
            return None
        if len({isinstance(entry, slice) for entry in entries}) > 1:
            return None  # index arrays next to slices: their axes may move to the front
        return terms[(slice(None), *entries)]

    def _counts(self, node: Apply) -> Variable | None:
        """``table[category_1, category_2].inc(weight)``: each record has a table of its own."""
        table, weight, *indices = node.inputs
        try:
            entries = subtensor_entries(node.op, table, indices)
        except Blocked:
            return None
        shape = table.type.shape
        if table in self._dependent or None in shape or any(isinstance(e, slice) for e in entries):
            return None
        flat = pt.zeros((), dtype="int64")
        for entry, length in zip(entries, shape, strict=True):
            flat = flat * length + pt.switch(entry < 0, entry + length, entry)
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
