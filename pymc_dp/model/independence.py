"""Proof that no record's log-likelihood depends on another record's data.

`prove_independence` takes the rows of a log-likelihood at an index, by the walk of `RowWalk`, from
graphs in which every array is a shared variable (`expose`). The walk replaces an array by those of
its rows that the index asks for. If no private array is left among the ancestors, a row of the
log-likelihood is a function of these rows alone. Nothing is tried out: where the walk ends, the
model is refused.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, NoReturn

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.exposed import Exposed
from pymc_dp.model.indexing import Blocked, RowWalk, subtensor_entries
from pymc_dp.model.parameter_checks import SELECTIONS, interval
from pymc_dp.model.public_arrays import is_structural
from pymc_dp.model.roots import INTERPRETED, downstream, stored, upstream, value_inputs
from pymc_dp.model.withheld import evaluate

__all__ = ["check_ranges", "prove_independence"]


def prove_independence(
    exposed: Exposed,
    rows: Sequence[Variable],
    parameters: Sequence[Variable],
    names: Sequence[str],
    labels: Sequence[np.ndarray],
    n_records: int,
) -> None:
    """Prove that each record's log-likelihood depends on that record's data only.

    Parameters
    ----------
    exposed : Exposed
    rows : sequence of Variable
        Row-wise log-likelihood of each observed variable, without parameter checks.
    parameters : sequence of Variable
        Inputs that stand for the parameters, of known shape, with their names.
    names : sequence of str
        Of the observed variables.
    labels : sequence of integer arrays
        The record each row belongs to, from 0 to the number of records.
    n_records : int

    Raises
    ------
    UnsupportedModel
        If there is no proof, if a log-likelihood does not have one entry per row, or if a parameter
        has one entry per record.
    """
    stages = ("ShapeOpt", "canonicalize", "stabilize", "specialize")
    rows = rewrite_graph(
        list(rows), include=stages, exclude=("local_pow_to_nested_squaring", "constant_folding")
    )
    owners: dict[Variable, tuple[int, np.ndarray]] = {}
    first = _first_of_equals(exposed.private)
    of_length = {len(label): label for label in labels}
    for row, name, label in zip(rows, names, labels, strict=True):
        length = row.type.shape[0]
        if length is None:
            length = int(_evaluate(row.shape[0], parameters))
        if length != len(label):
            raise UnsupportedModel(
                f"the log-likelihood of {name!r} does not have one entry per row: its leading axis has length {length}, the "
                f"data have {len(label)} rows. Put the records on the leading axis."
            )
        if n_records == 1:
            continue
        proof = _Proof(exposed, parameters, name, label, n_records, owners, first, of_length)
        try:
            found = upstream([proof(row, 0, proof.base)])
        except Blocked as error:
            _refuse(
                name, f"the operation {error} works on all rows at once, as far as can be shown"
            )
        for array in exposed.private:
            if array in found:
                _refuse(
                    name,
                    f"it depends on all of {exposed.names[array]}, not on one row of it",
                    "If that holds no data of records (knots, bounds, data of groups, the centre and L of a pm.gp.HSGP, after "
                    "prior_linearized with public bounds), declare it with public=[...]. If it has data of persons, give it a "
                    "row for each row of what is observed (x[person] in NumPy), and transform rows with public constants.",
                )
    if n_records > 1:
        _check_lags(exposed, rows, names, labels)


def check_ranges(
    rows: Sequence[Variable], dependent: Set[Variable], parameters: Sequence[Variable]
) -> None:
    """Refuse what may raise at some parameters because of one record: nobody's term would be left.

    Compiled code does not even raise, but read other memory, if an index is out of range.

    Parameters
    ----------
    rows : sequence of Variable
        Row-wise log-likelihoods.
    dependent : set of Variable
        What depends on data in their graphs.
    parameters : sequence of Variable

    Raises
    ------
    UnsupportedModel
        If data and parameters decide together about an index that is not bounded, or about a
        matrix that is inverted.
    """
    both = downstream(rows, parameters) & dependent
    for node in toposort(rows):
        core = getattr(node.op, "core_op", node.op)
        if isinstance(node.op, SELECTIONS):
            x, *indices = node.inputs
            if both.isdisjoint(indices):
                continue
            for k, entry in enumerate(subtensor_entries(node.op, x, indices)):
                if isinstance(entry, slice) or entry not in both:
                    continue
                low, high = interval(entry, dependent)
                n = x.type.shape[k]
                if n is None or low < -n or high > n - 1:
                    raise UnsupportedModel(
                        "data and parameters decide together which entry of a table is read, and it may lie outside: "
                        f"bound the index by pt.clip(..., 0, {'n' if n is None else n} - 1)."
                    )
        elif type(core).__name__ in ("MatrixInverse", "Solve") and not both.isdisjoint(
            node.outputs
        ):
            raise UnsupportedModel(
                f"{type(core).__name__} of a matrix of each record may fail for one of them, which all would see. Use "
                "pm.MvNormal, or a formula without it."
            )


def _refuse(name: str, why: str, cure: str | None = None) -> NoReturn:
    cure = cure or (
        "Rows must be kept apart: transform with public constants in place of x - x.mean(), put each series on one row in "
        "place of y[1:] given y[:-1], call prior_linearized of a pm.gp.HSGP with public bounds first, compute in NumPy, row by "
        "row, what PyTensor does otherwise, name the privacy unit with records=."
    )
    raise UnsupportedModel(
        f"the log-likelihood of a record of {name!r} cannot be shown to depend on its own row only: {why}. {cure}"
    )


def _evaluate(variable: Variable, inputs: Sequence[Variable]) -> np.ndarray:
    zeros = [np.zeros(v.type.shape, v.dtype) for v in inputs]
    function = pytensor.function(list(inputs), variable, mode=INTERPRETED, on_unused_input="ignore")
    return function(*zeros)


class _Proof(RowWalk):
    """Rows of a log-likelihood; each entry of a private array may be reached from one record only."""

    def __init__(
        self,
        exposed: Exposed,
        parameters: Sequence[Variable],
        name: str,
        label: np.ndarray,
        n_records: int,
        owners: dict[Variable, tuple[int, np.ndarray]],
        first: dict[Variable, Variable],
        of_length: dict[int, np.ndarray],
    ) -> None:
        self.base = pt.vector("index", dtype="int64")
        super().__init__(self.base)
        self._private, self._names = set(exposed.private), exposed.names
        self._parameters, self._name = set(parameters), name
        self._label, self._n_records = label, n_records
        self._owner_of = owners  # axis of an array that has rows, and the record of each of them
        self._first = first  # of the arrays with the same entries
        self._of_length = of_length | {len(label): label}
        self._rows: set[Variable] = {self.base}  # what is different for each row

    def _make(self, variable: Variable, axis: int, index: Variable) -> Variable:
        if isinstance(variable, SharedVariable) and variable in self._private:
            places = self._places(index)
            if places is not None:
                self._claim(variable, axis, *places)
                return self._new_rows(variable, axis)
        try:
            return super()._make(variable, axis, index)
        except Blocked:
            places = self._places(index)
            if places is None or not self._parameters.isdisjoint(upstream([variable])):
                raise
            return self._rearranged(variable, axis, *places)

    def _rearranged(
        self, variable: Variable, axis: int, place: np.ndarray, row: np.ndarray
    ) -> Variable:
        """Rows of data alone: where each entry comes from, by the same operations on numbers of entries."""
        for array in self._private & upstream([variable]):
            source = _evaluate(_sources(variable, array, self._private), ())
            source = np.moveaxis(source, axis, 0).reshape(source.shape[axis], -1)[place]
            asks = np.repeat(row, source.shape[1])[source.ravel() >= 0]
            along = self._owner_of.get(self._first[array], (0,))[0]
            entries = np.unravel_index(source[source >= 0], stored(array).shape)
            self._claim(array, along, entries[along], asks)
        return self._new_rows(variable, axis)

    def _new_rows(self, variable: Variable, axis: int) -> Variable:
        shape = [None if k == axis else n for k, n in enumerate(variable.type.shape)]
        rows = pt.tensor(dtype=variable.dtype, shape=shape)
        self._rows.add(rows)
        return rows

    def _places(self, index: Variable) -> tuple[np.ndarray, np.ndarray] | None:
        """Entries of an index, and the row that asks for each; None if private data decide."""
        owner = self._owner(index)
        data = self._private | (self._rows - {self.base})
        if not data.isdisjoint(upstream([index, owner])):
            return None
        base = np.arange(len(self._label))
        if index is self.base:
            return base, base
        function = pytensor.function(
            [self.base], [index, owner], mode=INTERPRETED, on_unused_input="ignore"
        )
        return tuple(function(base))

    def _claim(self, variable: Variable, axis: int, place: np.ndarray, row: np.ndarray) -> None:
        """Every entry of an array belongs to one record, and arrays of equal length alike."""
        n = stored(variable).shape[axis]
        if axis and stored(variable).shape[0] == n:
            _refuse(
                self._name,
                f"{self._names[variable]} is square, and its columns are taken for the records. Transpose it, so that "
                "the records are its rows",
            )
        record = np.full(n, -1)
        record[place % n] = self._label[row]
        again = np.array_equal(record[place % n], self._label[row])
        known_axis, known = self._owner_of.get(self._first[variable], (axis, record))
        for other in (known, self._of_length.get(n, record)):
            both = (record >= 0) & (other >= 0)
            again = again and bool((record[both] == other[both]).all())
        if not again or known_axis != axis:
            _refuse(self._name, f"entries of {self._names[variable]} reach several records")
        merged = np.where(record < 0, known, record)
        self._owner_of[self._first[variable]] = axis, merged
        self._of_length[n] = np.where(merged < 0, self._of_length.get(n, merged), merged)

    def _picked(
        self, x: Variable, entries: list[Any], axis: int, from_end: int, index: Variable
    ) -> Variable:
        found = upstream([x])
        if not self._parameters.isdisjoint(found) and any(
            (n := x.type.shape[k]) is not None and n >= self._n_records
            for k, entry in enumerate(entries)
            if not isinstance(entry, slice) and not self._rows.isdisjoint(upstream([entry]))
        ):
            (first, *_) = sorted(v.name for v in self._parameters & found)
            raise UnsupportedModel(
                f"{first!r} has an entry for each record. Such latent variables cannot be learned privately, and would "
                "hold what is to be protected. Integrate them out (e.g. pm.Mixture, pm.StudentT, pm.NegativeBinomial) or "
                "share them between records."
            )
        return super()._picked(x, entries, axis, from_end, index)


def _sources(variable: Variable, array: Variable, private: set[Variable]) -> Variable:
    """For each entry of what is computed from data: the entry of an array it depends on, or -1.

    Raises
    ------
    Blocked
        If an entry may depend on more than one.
    """
    made: dict[Variable, Variable] = {
        array: pt.constant(np.arange(stored(array).size).reshape(stored(array).shape))
    }

    dependent = downstream([variable], private)

    def of(v: Variable) -> Variable:
        return made[v] if v in made else pt.zeros(v.shape, dtype="int64") - 1

    for node in toposort([variable]):
        inside = [v for v in value_inputs(node) if v in made]
        if not inside:
            continue
        is_move = isinstance(node.op, DimShuffle | Reshape | SpecifyShape | SELECTIONS)
        if is_move and dependent.isdisjoint(node.inputs[1:]):
            made[node.outputs[0]] = node.op(made[node.inputs[0]], *node.inputs[1:])
        elif isinstance(node.op, Join):
            parts = [of(v) if v.ndim else v for v in node.inputs]
            made[node.outputs[0]] = node.op(*parts)
        elif isinstance(node.op, Elemwise) and len(inside) == 1:
            others = [pt.zeros(v.shape, dtype="int64") for v in node.inputs if v not in made]
            made[node.outputs[0]] = sum(others, made[inside[0]])
        else:
            raise Blocked(type(node.op).__name__)
    return made[variable]


def _first_of_equals(arrays: Sequence[Variable]) -> dict[Variable, Variable]:
    """For each array the first one with the same entries, which are then the same people's."""
    first: dict[Variable, Variable] = {}
    for array in arrays:
        data = stored(array)
        equal = (
            other
            for other in dict.fromkeys(first.values())
            if stored(other).shape == data.shape
            and np.array_equal(stored(other)[:1], data[:1], equal_nan=data.dtype.kind == "f")
            and np.array_equal(stored(other), data, equal_nan=data.dtype.kind == "f")
            and not is_structural(data)
        )
        first[array] = next(equal, array)
    return first


def _check_lags(
    exposed: Exposed, rows: Sequence[Variable], names: Sequence[str], labels: Sequence[np.ndarray]
) -> None:
    """Refuse rows that hold other rows' observations: slices taken in NumPy leave no trace in a graph."""
    arrays = evaluate(
        "when its observed data were computed",
        lambda: pytensor.function([], list(exposed.values), mode=INTERPRETED)(),
    )
    for row, name, label, value, observed in zip(
        rows, names, labels, exposed.values, arrays, strict=True
    ):
        if len(np.unique(label)) == 1:
            continue
        own = upstream([value])
        for array in (upstream([row]) - own) & set(exposed.private):
            if _is_lagged(observed, stored(array)):
                _refuse(name, f"{exposed.names[array]} holds observations of other rows")


def _is_lagged(observed: np.ndarray, other: np.ndarray) -> bool:
    """Whether another array holds the observations of earlier or later rows."""
    n = len(observed)
    if other.ndim == 0 or not len(other) or len(other) < n:
        return False
    if observed.ndim == 1:
        columns = list(other.reshape(len(other), -1).T)
    else:
        columns = [other] if other.shape[1:] == observed.shape[1:] else []
    surplus = len(other) - n
    pairs = (
        pair
        for column in columns
        for k in (range(surplus + 1) if surplus else range(1, min(4, n)))
        for pair in (
            [(observed, column[k : k + n])]
            if surplus
            else [(observed[k:], column[:-k]), (observed[:-k], column[k:])]
        )
        if np.array_equal(pair[0][0], pair[1][0])  # seldom true, and saves comparing the rest
    )
    # Few different values may agree by chance, such as labels in sorted order.
    return any(np.array_equal(a, b) and len(np.unique(a)) >= 5 for a, b in pairs)
