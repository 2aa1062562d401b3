"""Proof that no record's log-likelihood depends on another record's data.

`prove_independence` takes rows of a log-likelihood at an index, with the walk `RowWalk`, from graphs
in which every array is a shared variable (`expose`). The walk replaces an array by the rows that the
index selects. If no private array is left among the ancestors, a row of the log-likelihood is a
function of these rows alone. No value is tried out: where the walk has no rule, the model is refused.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, NoReturn

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import (
    downstream,
    evaluate_without_inputs,
    interpreted,
    stored,
    upstream,
    value_inputs,
)
from pymc_dp.model.graphs.exposed import Exposed, canonical
from pymc_dp.model.graphs.index_entries import Blocked, subtensor_entries
from pymc_dp.model.graphs.parameter_checks import SELECTIONS, interval
from pymc_dp.model.graphs.public_arrays import are_equal, is_structural
from pymc_dp.model.graphs.row_subsets import RowWalk
from pymc_dp.model.row_positions import depends_on_position, has_row_numbers

#: Operations that raise if a matrix is singular, or not finite.
_MAY_FAIL = ("MatrixInverse", "MatrixPinv", "Solve", "SVD", "Eig", "Eigh", "Eigvalsh")


def prove_independence(
    exposed: Exposed,
    rows: Sequence[Variable],
    parameters: Sequence[Variable],
    names: Sequence[str],
    labels: Sequence[np.ndarray],
    n_records: int,
) -> list[str]:
    """Prove that each record's log-likelihood depends on that record's data only; UnsupportedModel without a proof.

    Given are, for each observed variable, the row-wise log-likelihood without parameter checks, the name, and the label
    of each row: its record, from 0 to ``n_records - 1``. The parameters are inputs of known shape. A log-likelihood
    without one entry per row, or a parameter with one entry per record, is refused too.

    Returned are the likelihoods that also depend on the position of a record among the others, or on the number of
    records: under add/remove, removing one record changes these for all.
    """
    rows = canonical(rows)
    owners: dict[Variable, tuple[int, np.ndarray]] = {}
    first = _first_of_equals(exposed.private)
    of_length = {len(label): label for label in labels}
    by_position = [*exposed.by_number]
    for row, name, label in zip(rows, names, labels, strict=True):
        _check_length(row, name, len(label), parameters)
        if n_records > 1:
            proof = _Proof(exposed, parameters, name, label, n_records, owners, first, of_length)
            if proof.run(row):
                by_position.append(f"the likelihood of {name!r}")
    if n_records > 1:
        _check_lags(exposed, rows, names, labels)
    by_position += [exposed.names[v] for v in exposed.private if has_row_numbers(stored(v))]
    return by_position


def _check_length(row: Variable, name: str, n_rows: int, parameters: Sequence[Variable]) -> None:
    length = row.type.shape[0]
    if length is None:
        length = int(_at_zeros(row.shape[0], parameters))
    if length != n_rows:
        raise UnsupportedModel(
            f"the log-likelihood of {name!r} does not have one entry per row: its leading axis has length {length}, the "
            f"data have {n_rows} rows. Put the records on the leading axis."
        )


def check_ranges(
    rows: Sequence[Variable], dependent: Set[Variable], parameters: Sequence[Variable]
) -> None:
    """Refuse operations that may fail for one record at some parameters, and thereby for all records.

    Compiled code does not raise for an index out of range, but reads other memory. So UnsupportedModel is raised if an
    index that is not bounded, or a matrix that is inverted, depends on both the parameters and data: on one of the
    variables in `dependent`.
    """
    both = downstream(rows, parameters) & dependent
    for node in toposort(rows):
        core = type(getattr(node.op, "core_op", node.op)).__name__
        if isinstance(node.op, SELECTIONS):
            _check_indices(node, both, dependent)
        elif core in _MAY_FAIL and not both.isdisjoint(node.outputs):
            raise UnsupportedModel(
                f"{core} of a matrix for each record may fail for one record, and then for the whole model. "
                "Use pm.MvNormal, or a formula without it."
            )


def _check_indices(node: Apply, both: Set[Variable], dependent: Set[Variable]) -> None:
    x, *indices = node.inputs
    if both.isdisjoint(indices):
        return
    for n, entry in zip(x.type.shape, subtensor_entries(node.op, x, indices), strict=True):
        if isinstance(entry, slice) or entry not in both:
            continue
        low, high = interval(entry, dependent)
        if n is None or low < -n or high > n - 1:
            raise UnsupportedModel(
                "an index depends on data and parameters, and it may be out of range: "
                f"convert it to integers, then bound it by pt.clip(index, 0, {'n' if n is None else n} - 1)."
            )


def _refuse(name: str, why: str, cure: str | None = None) -> NoReturn:
    cure = cure or (
        "Rows must be kept apart: use public constants instead of x - x.mean(), put each time series on one row instead of "
        "y[1:] given y[:-1], call prior_linearized of a pm.gp.HSGP with public bounds first, compute row by row in NumPy "
        "if PyTensor has no such operation, or define the privacy unit with records=."
    )
    raise UnsupportedModel(
        f"the log-likelihood of a record of {name!r} cannot be shown to depend on its own row only: {why}. {cure}"
    )


def _at_zeros(variable: Variable, inputs: Sequence[Variable]) -> np.ndarray:
    zeros = [np.zeros(v.type.shape, v.dtype) for v in inputs]
    return interpreted(inputs, variable)(*zeros)


class _Proof(RowWalk):
    """Rows of a log-likelihood in which each entry of a private array is used by one record only."""

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
        self._owner_of = owners  # axis of an array that runs over rows, and the record of each row
        self._first = first  # for each array, the first one with the same entries
        self._of_length = of_length | {len(label): label}
        self._rows: set[Variable] = {self.base}  # variables that differ between rows

    def run(self, row: Variable) -> bool:
        """Refuse rows that depend on more than one row of each private array; return whether they depend on positions."""
        try:
            of_rows = self(row, 0, self.base)
        except Blocked as error:
            _refuse(self._name, f"the operation {error} works on all rows at once, or is not known")
        found = upstream([of_rows])
        for array in filter(found.__contains__, self._names):
            _refuse(
                self._name,
                f"it depends on all of {self._names[array]}, not on one row of it",
                "If it holds no data of records (knots, bounds, data of groups, the centre and L of a pm.gp.HSGP, after "
                "prior_linearized with public bounds), declare it with public=[...]. If it holds data of persons, give it a "
                "row for each observed row (x[person] in NumPy), and transform rows with public constants.",
            )

        data = (self._rows - {self.base}) | self._parameters
        return depends_on_position(of_rows, self.base, data, self._label)

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
        """Rows of a function of data alone: the source of each entry, from the same operations applied to entry numbers."""
        for array in self._private & upstream([variable]):
            source = _at_zeros(_sources(variable, array, self._private), ())
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
        """Entries of an index and the row that uses each; None if the index depends on private data."""
        owner = self._owner(index)
        data = self._private | (self._rows - {self.base})
        if not data.isdisjoint(upstream([index, owner])):
            return None
        base = np.arange(len(self._label))
        if index is self.base:
            return base, base
        return tuple(interpreted([self.base], [index, owner])(base))

    def _claim(self, variable: Variable, axis: int, place: np.ndarray, row: np.ndarray) -> None:
        """Assign entry k of all arrays of equal length to one record; refuse if it would belong to two."""
        n = stored(variable).shape[axis]
        if axis and stored(variable).shape[0] == n:
            _refuse(
                self._name,
                f"{self._names[variable]} is square, and its columns are used as the records. Transpose it, so that "
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
                f"{first!r} has an entry for each record. Such latent variables describe single records, which must be "
                "protected, and cannot be learned privately. Integrate them out (e.g. pm.Mixture, pm.StudentT, "
                "pm.NegativeBinomial), or share them between records."
            )
        return super()._picked(x, entries, axis, from_end, index)


def _sources(variable: Variable, array: Variable, private: set[Variable]) -> Variable:
    """Entry of `array` on which each entry of a function of data depends, -1 for none; `Blocked` if it may be several."""
    places = np.arange(stored(array).size).reshape(stored(array).shape)
    made: dict[Variable, Variable] = {array: pt.constant(places)}
    dependent = downstream([variable], private)
    for node in toposort([variable]):
        if not made.keys().isdisjoint(value_inputs(node)):
            made[node.outputs[0]] = _source(node, made, dependent)
    return made[variable]


def _source(node: Apply, made: dict[Variable, Variable], dependent: Set[Variable]) -> Variable:
    op, inputs = node.op, node.inputs
    is_move = isinstance(op, DimShuffle | Reshape | SpecifyShape | SELECTIONS)
    if is_move and dependent.isdisjoint(inputs[1:]):
        return op(made[inputs[0]], *inputs[1:])
    if isinstance(op, Join):
        return op(*(made.get(v, _nowhere(v)) for v in inputs))
    inside = [made[v] for v in inputs if v in made]
    if isinstance(op, Elemwise) and len(inside) == 1:
        return inside[0] + pt.zeros(node.outputs[0].shape, dtype="int64")
    raise Blocked(type(op).__name__)


def _nowhere(v: Variable) -> Variable:
    # In PyTensor 2 the axis is an input.
    return pt.zeros(v.shape, dtype="int64") - 1 if v.ndim else v


def _first_of_equals(arrays: Sequence[Variable]) -> dict[Variable, Variable]:
    """The first array with the same entries, for each array: equal arrays belong to the same records."""
    first: dict[Variable, Variable] = {}
    for array in arrays:
        data = stored(array)
        others = () if is_structural(data) else dict.fromkeys(first.values())
        first[array] = next((v for v in others if are_equal(stored(v), data)), array)
    return first


def _check_lags(
    exposed: Exposed, rows: Sequence[Variable], names: Sequence[str], labels: Sequence[np.ndarray]
) -> None:
    """Refuse arrays that hold observations of other rows: a graph does not show slices taken in NumPy."""
    arrays = evaluate_without_inputs(exposed.values, "when its observed data were computed")
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
    if other.ndim == 0 or len(other) < len(observed):
        return False
    if observed.ndim == 1:
        return any(_is_shifted(observed, column) for column in other.reshape(len(other), -1).T)
    return other.shape[1:] == observed.shape[1:] and _is_shifted(observed, other)


def _is_shifted(observed: np.ndarray, other: np.ndarray) -> bool:
    n, surplus = len(observed), len(other) - len(observed)
    if surplus:
        return any(_agree(observed, other[k : k + n]) for k in range(surplus + 1))
    return any(
        _agree(observed[k:], other[:-k]) or _agree(observed[:-k], other[k:])
        for k in range(1, min(4, n))
    )


def _agree(one: np.ndarray, other: np.ndarray) -> bool:
    # Arrays with few different values, such as sorted labels, may agree by chance.
    first_agrees = np.array_equal(one[0], other[0])  # a quick test, which seldom holds
    return first_agrees and np.array_equal(one, other) and len(np.unique(one)) >= 5
