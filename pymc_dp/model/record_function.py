"""A vector for each record, as a function of this record's data alone, and the terms of such vectors."""

from __future__ import annotations

import inspect
import math

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.checks import is_random
from pymc_dp.model.graphs.data_variables import interpreted, is_array_root, stored
from pymc_dp.model.graphs.graph_arrays import refuse_hidden
from pymc_dp.model.privacy_unit import assign_rows
from pymc_dp.model.sums.clipped_vectors import sum_of_clipped
from pymc_dp.model.sums.exact_sums import GRID_BITS
from pymc_dp.model.terms import Source, Term, is_replaced
from pymc_dp.model.withheld import evaluate

#: Rows that are evaluated at once.
_BLOCK = 2**12
_WHERE = "when the function was evaluated on the data"


@dataclass(frozen=True, eq=False)
class _Centred(Term):
    """A record's vector, relative to a public centre and size."""

    centre: np.ndarray
    exponent = -GRID_BITS

    @property
    def n_dim(self) -> int:
        """Length of a record's vector."""
        return len(self.centre)

    def _scaled(self, block: np.ndarray, size: float | np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", over="ignore"):
            return (block - self.centre) / size


@dataclass(frozen=True, eq=False)
class Ball(_Centred):
    """``(v - centre) / bound`` of a record's vector, clipped to the unit ball; 0 if it is not finite."""

    bound: float

    def of(self, block: np.ndarray) -> np.ndarray:
        """With the margin of :class:`ClippedScores`."""
        unit = 2.0**GRID_BITS
        length = unit * (1 - (self.n_dim + 16) * 2.0**-52)
        return sum_of_clipped(self._scaled(block, self.bound), unit, length, False)

    def sensitivity(self, adjacency: str) -> float:
        """Two vectors in the unit ball have a distance of at most 2; a removed one has a norm of at most 1."""
        return 1.0 + is_replaced(adjacency)


@dataclass(frozen=True, eq=False)
class Box(_Centred):
    """``(v - centre) / half_widths`` of a record's vector, each coordinate clipped to [-1, 1]; 0 if not a number."""

    half_widths: np.ndarray

    def of(self, block: np.ndarray) -> np.ndarray:
        """Coordinates are truncated to multiples of the unit."""
        vectors = self._scaled(block, self.half_widths)
        clipped = np.clip(np.where(np.isnan(vectors), 0.0, vectors), -1.0, 1.0)
        return np.trunc(clipped * 2.0**GRID_BITS).astype(np.int64).sum(axis=0)

    def sensitivity(self, adjacency: str) -> float:
        """A vector with coordinates in [-1, 1] has a norm of at most the root of their number."""
        return (1 + is_replaced(adjacency)) * math.sqrt(self.n_dim)


@dataclass(frozen=True, eq=False)
class Bins(Term):
    """Bins of the coordinates of a record's vector; what is not a number is in the last bin.

    Edges are ascending, for each coordinate; a value on an edge is in the bin above it. Counts of all coordinates are
    one after the other.
    """

    edges: Sequence[np.ndarray]
    exponent = 0

    @property
    def n_dim(self) -> int:
        """Number of bins of all coordinates."""
        return sum(len(inner) + 1 for inner in self.edges)

    def split(self, counts: np.ndarray) -> list[np.ndarray]:
        """Those of each coordinate."""
        return np.split(counts, np.cumsum([len(inner) + 1 for inner in self.edges])[:-1], axis=-1)

    def of(self, block: np.ndarray) -> np.ndarray:
        """Numbers of records."""
        pairs = zip(block.T, self.edges, strict=True)
        places = ((np.searchsorted(e, column, side="right"), len(e) + 1) for column, e in pairs)
        return np.concatenate([np.bincount(bins, minlength=n) for bins, n in places])

    def sensitivity(self, adjacency: str) -> float:
        """Indicators of the bins of one coordinate are a unit vector: see :class:`ScoreNorms`; squared lengths add up."""
        return math.sqrt((1 + is_replaced(adjacency)) * len(self.edges))


class RecordFunction(Source):
    """A vector for each record, as a function of this record's data alone.

    `function` maps columns by name, and `public` further arguments, to a scalar, a vector or a list of scalars of PyTensor. It is
    called once, with symbols for the data of one row, and its graph is applied to all rows: it cannot see two rows at once.
    Vectors of rows with the same label in `records` are summed. `shape` is that of a row's result: ``()`` or ``(n_dim,)``.

    UnsupportedModel if the function has an array of its own, random numbers or an operation that cannot be inspected, or if
    its result is not a vector of public length.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        data: Mapping[str, Any],
        public: Mapping[str, Any] | None = None,
        records: Any = None,
    ) -> None:
        columns, public = _columns(data), {n: np.asarray(a) for n, a in (public or {}).items()}
        names = _argument_names(function, columns, public)
        self._names = [name for name in names if name in columns]
        self._columns = [columns[name] for name in self._names]
        rows = {n: pt.TensorType(columns[n].dtype, columns[n].shape[1:])(n) for n in names if n in columns}  # fmt: skip
        fixed = {n: pt.TensorType(public[n].dtype, public[n].shape)(n) for n in names if n in public}  # fmt: skip
        result = _as_vector(function(**rows, **fixed))
        result = _proved(result, [*rows.values(), *fixed.values()])
        self.shape = _public_shape(result, [*rows.values()])
        all_rows = {v: pt.TensorType(v.dtype, (None, *v.type.shape))(v.name) for v in rows.values()}
        self._function = interpreted(
            [*all_rows.values(), *fixed.values()], vectorize_graph(result, all_rows)
        )
        self._public = [public[name] for name in fixed]
        n_rows = len(self._columns[0])
        (self._labels,), self.n_records = assign_rows({"the data": n_rows}, records)
        self._one_each = records is None
        self.containers = tuple(self._columns)
        zeros = [np.zeros((1, *column.shape[1:]), column.dtype) for column in self._columns]
        with np.errstate(all="ignore"):  # of log(0), say
            self._function(*zeros, *self._public)  # errors that do not depend on the data

    @property
    def n_dim(self) -> int:
        """Length of a record's vector."""
        return math.prod(self.shape)

    def map(self, term: Term, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """See `Source`: a block has the vectors of some records as rows of a matrix."""
        yield from map(term.of, self._vectors())

    def of(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Vectors of public, simulated rows, not clipped, shape ``(n_rows, n_dim)``."""
        rows = [
            np.asarray(columns[name], own.dtype)
            for name, own in zip(self._names, self._columns, strict=True)
        ]
        return np.asarray(self._function(*rows, *self._public), float).reshape(
            len(rows[0]), self.n_dim
        )

    def _vectors(self) -> Iterator[np.ndarray]:
        """Vectors of all records, as rows of matrices, one for each block."""
        if self._one_each:
            yield from self._blocks()
            return
        total = np.zeros((self.n_records, self.n_dim))
        with np.errstate(invalid="ignore", over="ignore"):
            for begin, block in enumerate(self._blocks()):
                labels = self._labels[begin * _BLOCK : begin * _BLOCK + len(block)]
                np.add.at(total, labels, block)
        yield from (total[begin : begin + _BLOCK] for begin in range(0, self.n_records, _BLOCK))

    def _blocks(self) -> Iterator[np.ndarray]:
        n_rows = len(self._columns[0])
        for begin in range(0, n_rows, _BLOCK):
            block = [column[begin : begin + _BLOCK] for column in self._columns]
            found = evaluate(_WHERE, self._function, *block, *self._public)
            yield np.ascontiguousarray(found.reshape(len(block[0]), self.n_dim), dtype=float)


def _columns(data: Any) -> dict[str, np.ndarray]:
    """Arrays by name, of the same number of rows."""
    try:
        columns = {str(name): np.asarray(data[name]) for name in data}
    except (TypeError, KeyError, IndexError):
        raise TypeError(
            f"data must map names to arrays, as a dict or a DataFrame does, got {type(data).__name__}."
        ) from None
    bad = [name for name, column in columns.items() if column.ndim == 0]
    lengths = {name: len(column) for name, column in columns.items() if column.ndim}
    if bad or not columns or len(set(lengths.values())) > 1 or 0 in lengths.values():
        shapes = {name: column.shape for name, column in columns.items()}
        raise ValueError(
            f"The columns of data must have the same number of rows, at least one; got shapes {shapes}."
        )
    return columns


def _argument_names(
    function: Callable, columns: Mapping[str, np.ndarray], public: Mapping[str, np.ndarray]
) -> list[str]:
    """Names of a function's arguments, each a column of numbers or a public array."""
    if both := sorted(columns.keys() & public.keys()):
        raise ValueError(f"{', '.join(both)} cannot be both data and public.")
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in columns or name in public:
            names.append(name)
        elif parameter.default is inspect.Parameter.empty:
            raise ValueError(
                f"The function has the argument {name!r}, but the columns are {', '.join(columns)}: name its arguments as the data."
            )
    used = [name for name in names if name in columns]
    if not used:
        raise ValueError("The function has no column of the data as an argument.")
    if text := [name for name in used if columns[name].dtype.kind not in "biuf"]:
        raise ValueError(
            f"{', '.join(text)} must be numbers, not of type {columns[text[0]].dtype}: give categories as codes "
            "of a public list, such as pandas.Categorical(column, categories=[...]).codes."
        )
    return names


def _as_vector(result: Any) -> Variable:
    """A graph of floats."""
    if isinstance(result, list | tuple):
        result = pt.stack([pt.as_tensor_variable(part) for part in result])
    return pt.as_tensor_variable(result).astype("float64")


def _proved(result: Variable, arguments: Sequence[Variable]) -> Variable:
    """A function of its arguments and of numbers, by the proof for models; refuse all else: it may hold data of all records."""
    found = refuse_hidden("The function", [result])
    if any(map(is_random, found)):
        raise UnsupportedModel("The function draws random numbers: a record's vector must be a function of its data. Leave them out.")  # fmt: skip
    roots = [v for v in found if is_array_root(v) and v not in arguments]
    if held := [stored(v).shape for v in roots if v.ndim]:
        raise UnsupportedModel(
            f"The function holds an array of shape {held[0]} that is not an argument. If it holds no data of "
            "records, pass it by public={name: array}, with an argument of this name; data are arguments, too."
        )
    # A shared variable could change between two blocks.
    numbers = {v: pt.constant(stored(v).copy(), dtype=v.dtype) for v in roots if isinstance(v, SharedVariable)}  # fmt: skip
    return graph_replace([result], numbers, strict=False)[0]


def _public_shape(result: Variable, rows: Sequence[Variable]) -> tuple[int, ...]:
    """Shape of a row's result, which must not depend on data."""
    shape = result.type.shape
    if len(shape) > 1 or None in shape or 0 in shape:
        raise UnsupportedModel(
            f"The function must return a number or a vector of fixed length for each row, not an array of shape {shape}."
        )
    known = set(ancestors([result]))
    if not any(row in known for row in rows):
        raise UnsupportedModel("The function's result does not depend on the data.")
    return tuple(shape)
