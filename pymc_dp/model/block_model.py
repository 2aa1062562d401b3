"""The model of one block, whose ``pm.Data`` hold its columns: `pm.set_data`, in the compiled functions alone."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.errors import ModelError, UnsupportedModel
from pymc_dp.model.compiled_model import ModelGraphs
from pymc_dp.model.graphs.data_variables import is_array_root, observed_values, stored, upstream
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.model.sums.gradients import Block

#: Types and trailing shapes of columns, by name.
Layout = Mapping[str, tuple[np.dtype, tuple[int, ...]]]

#: Least number of rows of a made-up block.
_N_ROWS = 192
_DEPENDS_ON_ROWS = "the number of rows of a block, or on their positions: use public numbers, and add what differs between records to the columns"
_NO_COLUMN = 'With data=, what differs between records is a pm.Data with the name of a column, such as pm.Data("x", np.zeros((1, 3)))'


class BlockModel(RecordLikelihood):
    """The likelihood of the rows of one block, from a model in whose ``pm.Data`` other rows stand.

    It is proved and compiled with made-up columns; then others are loaded in their place.
    """

    def __init__(
        self,
        model: pm.Model,
        layout: Layout,
        public: Sequence[Any],
        compile_kwargs: dict[str, Any] | None,
        n_records: float = math.inf,
    ) -> None:
        fed = _fed(model, layout, public)
        self._containers = {v: name for name, v in fed.items()}
        self.layout: Layout = {name: layout[name] for name in fed}
        block = made_up(self.layout, _n_rows(model, fed, n_records))
        with holding(model, block):
            super().__init__(model, public=public, compile_kwargs=compile_kwargs)
            self._check_longer_block(block)
        del self.__dict__["_containers"]  # copies for other processes have no array of the model

    def _evaluate(self, function: Callable, *arguments: Any, **options: Any) -> Any:
        try:
            return super()._evaluate(function, *arguments, **options)
        except ModelError as error:
            raise UnsupportedModel(
                f"The model raised {error.kind} with {self.n_records} made-up rows in each of {', '.join(self.layout)}; its message is "
                f"withheld. {_NO_COLUMN}."
            ) from None

    def _first_evaluation(
        self, graphs: ModelGraphs, labels: list[np.ndarray], compile_kwargs: dict[str, Any] | None
    ) -> None:
        if self.by_position:
            raise UnsupportedModel(f"{self.by_position[0]} depends on {_DEPENDS_ON_ROWS}.")
        exposed, origin = graphs.exposed, graphs.exposed.origin
        if others := [v for v in exposed.private if origin[v] not in self._containers]:
            raise UnsupportedModel(
                f"{exposed.names[others[0]]} is no column of the data. {_NO_COLUMN}; declare what is public by public=."
            )
        self._columns = {v: self._containers[origin[v]] for v in exposed.private}
        inside = [upstream([value]) for value in exposed.values]
        #: For each observed variable, the columns that it is observed as.
        self.observed = [[n for v, n in self._columns.items() if v in found] for found in inside]
        super()._first_evaluation(graphs, labels, compile_kwargs)

    def _compile(self, theta: Variable, rows: Sequence[Variable], *arguments: Any, private: Sequence[Variable] = (), **options: Any) -> None:  # fmt: skip
        super()._compile(theta, rows, *arguments, changing=private, **options)
        graphs = self._batch._graphs
        assert graphs is not None  # nothing was compiled yet
        # What PyTensor has computed for the rows of this block would be read in the place of other rows.
        arrays = {v for v in ancestors(graphs.rows) if is_array_root(v)}.difference(private)
        if shapes := [stored(v).shape for v in arrays if self.n_records in stored(v).shape]:
            raise UnsupportedModel(
                f"The model makes an array of shape {shapes[0]}, with as many rows as a block: use scalars for what is the same in all rows."
            )

    def _check_longer_block(self, block: Mapping[str, np.ndarray]) -> None:
        """Refuse a model whose rows are others in a longer block, or cannot be computed alone."""
        theta, found = self._start + 0.1, []
        for times in (1, 3):
            self.load({name: np.concatenate([c] * times) for name, c in block.items()})
            found.append((self.logp(theta), self._gradients.each(theta)))
        for short, long in zip(*found, strict=True):
            # The same row may round differently in other places, by 1e-13 or so.
            if not np.allclose(
                np.concatenate([short] * 3), long, rtol=1e-9, atol=1e-9, equal_nan=True
            ):
                raise UnsupportedModel(f"The model depends on {_DEPENDS_ON_ROWS}.")

    def load(self, block: Mapping[str, np.ndarray]) -> None:
        """Put the columns of a block in place of those before."""
        n_rows = len(next(iter(block.values())))
        arrays = {
            v: block[name].astype(v.dtype, order="C", copy=False)
            for v, name in self._columns.items()
        }
        self.__dict__["n_records"] = n_rows
        for groups in (self._batch, self._gradients):
            groups.load(arrays, n_rows)

    @property
    def block(self) -> Block:
        """The rows that are loaded."""
        return Block(self._batch, self._gradients)


def made_up(layout: Layout, n_rows: int) -> dict[str, np.ndarray]:
    """Columns of random numbers: floats between 0.05 and 0.95, which most likelihoods allow, integers and booleans 0 or 1."""
    rng, block = np.random.default_rng(0), {}
    for name, (dtype, shape) in layout.items():
        values = rng.uniform(0.05, 0.95, (n_rows, *shape))
        block[name] = (values if np.dtype(dtype).kind == "f" else values > 0.5).astype(dtype)
    return block


@contextmanager
def holding(model: pm.Model, columns: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Within this context the model's ``pm.Data`` hold these columns, made-up or public ones; then their own again."""
    before = {v: v.get_value(borrow=True) for v in model.data_vars if v.name in columns}
    try:
        for v in before:
            v.set_value(columns[v.name].astype(v.dtype), borrow=True)
        yield
    finally:
        for v, array in before.items():
            v.set_value(array, borrow=True)


def _fed(model: pm.Model, layout: Layout, public: Sequence[Any]) -> dict[str, Variable]:
    """The model's ``pm.Data`` that are columns, by name; each observed variable has one, and all others are public."""
    fed, declared = {}, PublicArrays(model, public)
    for v in model.data_vars:
        if v.name not in layout:
            if v.ndim and v not in declared:
                raise UnsupportedModel(
                    f"pm.Data({v.name!r}) is no column of the data, {', '.join(layout)}: give them the same name, in the model or by "
                    "arguments= of the records, or declare it by public=."
                )
            continue
        dtype, shape = layout[v.name]
        if v in declared:
            raise ValueError(
                f"public= has {v.name!r}, a column of the data: remove it. covariates='public' says that covariates are public."
            )
        if (
            stored(v).shape[1:] != shape
            or not v.ndim
            or not np.can_cast(dtype, v.dtype, "same_kind")
        ):
            raise UnsupportedModel(
                f"pm.Data({v.name!r}) has rows of {v.dtype} {stored(v).shape[1:]}, and the column of the data has {dtype} {shape}: write "
                f"pm.Data({v.name!r}, np.zeros({(1, *shape)}, {np.dtype(dtype).name!r}))."
            )
        fed[v.name] = v
    for rv, value in zip(model.observed_RVs, observed_values(model), strict=True):
        if upstream([value]).isdisjoint(fed.values()):
            raise UnsupportedModel(
                f"{rv.name!r} is not observed as a column of the data, {', '.join(layout)}. {_NO_COLUMN}."
            )
    return fed


def _n_rows(model: pm.Model, fed: Mapping[str, Variable], n_records: float) -> int:
    """More rows than parameters have entries, unless they have one for each record; no array has as many."""
    entries = max((n or 0 for v in model.free_RVs for n in v.type.shape), default=0)
    n_rows = max(_N_ROWS, entries + 1) if entries < n_records else _N_ROWS
    arrays = {v for v in ancestors(model.basic_RVs) if is_array_root(v)}.difference(fed.values())
    lengths = {n for v in arrays for n in stored(v).shape}
    while n_rows in lengths:
        n_rows += 1
    return n_rows
