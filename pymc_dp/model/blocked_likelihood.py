"""Reductions over records in blocks, which are read one after the other: on disk, or too many for copies.

The model is a function of a block. It is built and compiled once, on made-up columns; then the columns of each
block are put in their place. Each reduction is a sum of whole numbers, so that it does not depend on the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pymc as pm

from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.data import Records
from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.compiled_model import CompiledModel, ModelGraphs
from pymc_dp.model.data_keys import new_digest
from pymc_dp.model.graphs.data_variables import (
    downstream,
    interpreted,
    is_array_root,
    stored,
    upstream,
)
from pymc_dp.model.graphs.exposed import expose
from pymc_dp.model.graphs.parameter_checks import SELECTIONS
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.model.made_up_block import Take, column_of, made_up_block, model_of
from pymc_dp.model.reductions import Reductions
from pymc_dp.model.sums.batch_likelihood import BatchLikelihood, checked_index
from pymc_dp.model.sums.exact_sums import grid
from pymc_dp.model.sums.vector_sums import product_exponent
from pymc_dp.model.withheld import evaluate

__all__ = ["BlockedLikelihood"]

#: Rows of the made-up block, and least number of rows of one that is given.
_N_ROWS, _LEAST_ROWS = 192, 64
_DEPENDS_ON_ROWS = (
    "The model depends on the number of rows of a block, or on their order, for instance by len(y), np.arange(len(y)) or a mean "
    "over rows: use public numbers, and add what differs between records to the columns."
)
_INTERPRETED = {"mode": Mode("py", optimizer=None), "on_unused_input": "ignore"}


class BlockedLikelihood(Reductions):
    """Reductions over records that are read in blocks, and the prior of their model.

    Nothing is held in memory but a block, those that are read ahead, and what is computed from one block. No
    log-likelihoods are kept between calls: a decision evaluates both of its positions, while it reads the data once.

    Parameters
    ----------
    function : callable
        Builds the model of a block: its arguments have the names of the columns, and it returns a ``pm.Model``, or
        builds variables in the model on the context stack. The same as for an ordinary model holds; in addition,
        each array with rows is a column of the data, or one column of a matrix: what is computed from columns is
        computed with ``pm.math``.
    records : Records
        The columns; each row is a record.
    public : sequence of str or array, optional
        Arrays of the model that do not hold data of records, see :class:`~pymc_dp.model.RecordLikelihood`.
    example : mapping of str to array, optional
        Made-up columns, of 64 rows or more, for models that do not allow floats between 0.05 and 0.95 and integers
        0 and 1; public.
    private : bool
        Whether the text of errors raised on the data is withheld. True by default.
    compile_kwargs : dict, optional
        For ``pytensor.function``.

    Attributes
    ----------
    model : pm.Model
        Of the made-up block: it has the parameters, and no data.
    records : Records
    n_records, n_dim, slices, public, data_keys, row_keys
        As of :class:`~pymc_dp.model.RecordLikelihood`.

    Raises
    ------
    UnsupportedModel
        If the model cannot be sampled privately as written, or depends on more than the columns of a block.
    ValueError
        If `example` does not fit the columns.
    ModelError
        If the model raises on the data, for instance as an index is out of range.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        records: Records,
        *,
        public: Sequence[Any] = (),
        example: Mapping[str, Any] | None = None,
        private: bool = True,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> None:
        block = _example(records, example)
        self._function, self.model = function, model_of(function, block)
        _check_rows_alone(function, self.model, block, public)
        self._block = _BlockModel(self.model, block, public, compile_kwargs)
        self.records, self.n_records, self._private = records, records.n_records, private
        self.n_dim = self._block.n_dim
        self.public, self.model_token = self._block.public, self._block.model_token
        digests = records.digests(new_digest)
        self.data_keys = tuple(dict.fromkeys(digests.values()))
        self.row_keys = {
            rv.name: tuple(digests[take.name] + repr(take).encode() for take in takes)
            for rv, takes in zip(self.model.observed_RVs, self._block.observed, strict=True)
        }
        if self._block.has_indices:
            for loaded in self._loaded():
                evaluate("when its rows were first evaluated", loaded.check, private=private)

    def __repr__(self) -> str:
        return f"BlockedLikelihood({self.records!r}, parameters={list(self.slices)})"

    @property
    def slices(self) -> Mapping[str, slice]:
        """As of :class:`~pymc_dp.model.RecordLikelihood`."""
        return self._block.slices

    def log_prior(self, theta: np.ndarray) -> float:
        """As of :class:`~pymc_dp.model.RecordLikelihood`."""
        return self._block.log_prior(theta)

    def grad_log_prior(self, theta: np.ndarray) -> np.ndarray:
        """As of :class:`~pymc_dp.model.RecordLikelihood`."""
        return self._block.grad_log_prior(theta)

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """As of :class:`~pymc_dp.model.RecordLikelihood`."""
        return self._block.ravel(point)

    def unravel(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """As of :class:`~pymc_dp.model.RecordLikelihood`."""
        return self._block.unravel(theta)

    def model_of_rows(self, n_rows: int, rng: np.random.Generator, *, public: bool) -> pm.Model:
        """The model of other rows: those of some records, or made-up ones.

        Parameters
        ----------
        n_rows : int
            At most.
        rng : numpy.random.Generator
            Chooses the records.
        public : bool
            Whether covariates are public, and those of records are read. What is observed is made up.
        """
        n_rows = min(n_rows, self.n_records)
        rows = made_up_block(self.records.layout, n_rows)
        if public:
            read = self.records.take(np.sort(rng.choice(self.n_records, n_rows, replace=False)))
            observed = {take.name for takes in self._block.observed for take in takes}
            rows |= {name: read[name] for name in rows.keys() - observed}
        return model_of(self._function, rows)

    def forget(self) -> None:
        """Nothing is kept."""

    def logp_at(self, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Log-likelihood of some records: as of :class:`~pymc_dp.model.RecordLikelihood`."""
        points = [self._checked(point) for point in np.atleast_2d(theta)]
        index = checked_index(index, self.n_records)
        parts = [
            [self._evaluate(loaded.logp, point) for point in points]
            for loaded in self._loaded(index)
        ]
        found = np.concatenate(parts, axis=1) if parts else np.empty((len(points), 0))
        return found if np.ndim(theta) == 2 else found[0]

    def _checked(self, theta: np.ndarray) -> np.ndarray:
        return self._block._checked(theta)

    def _loaded(self, index: np.ndarray | None = None) -> Iterator[_BlockModel]:
        """The model of a block, with one block of all records after the other, or of some by number."""
        if index is None:
            with closing(self.records.blocks()) as blocks:
                for block in blocks:
                    self._block.load(block)
                    yield self._block
            return
        length = self.records.block_rows
        for begin in range(0, len(index), length):
            self._block.load(self.records.take(index[begin : begin + length]))
            yield self._block

    def _evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        where = "when its log-likelihood was evaluated"
        return evaluate(where, function, *arguments, private=self._private)

    def _sum(
        self, term: Callable[[_BlockModel], Any], index: np.ndarray | None = None, zero: Any = 0
    ) -> Any:
        """Sum over blocks of a function of the model of each."""
        return sum((self._evaluate(term, block) for block in self._loaded(index)), zero)

    def _change_steps(self, new: np.ndarray, old: np.ndarray, scale: float, limit: float) -> int:
        return self._sum(lambda block: block._change_steps(new, old, scale, limit))

    def _plain_change(self, new: np.ndarray, old: np.ndarray) -> float:
        return self._sum(lambda block: block._plain_change(new, old))

    def _grad_steps(
        self,
        bound: float,
        theta: np.ndarray,
        index: np.ndarray | None,
        directions: np.ndarray | None,
        keeps_logp: bool = False,
    ) -> tuple[np.ndarray, int]:
        zero = np.zeros(_width(theta, directions), dtype=np.int64)
        arguments = bound, theta, None, directions
        return self._sum(lambda b: b._grad_steps(*arguments)[0], index, zero), grid(bound)[0]

    def _plain_grad(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> np.ndarray:
        zero = np.zeros(_width(theta, directions))
        return self._sum(lambda block: block._plain_grad(theta, None, directions), index, zero)

    def _norm_counts(
        self, theta: np.ndarray, directions: np.ndarray, edges: np.ndarray
    ) -> np.ndarray:
        return self._sum(lambda block: block._norm_counts(theta, directions, edges))

    def _product_steps(
        self, theta: np.ndarray, directions: np.ndarray, bound: float
    ) -> tuple[np.ndarray, int]:
        steps = self._sum(lambda block: block._product_steps(theta, directions, bound)[0])
        return steps, product_exponent(bound)


def _width(theta: np.ndarray, directions: np.ndarray | None) -> int:
    return len(theta) if directions is None else directions.shape[-1]


class _BlockModel(RecordLikelihood):
    """The likelihood of one block, in which other columns are put in place of the made-up ones."""

    #: For each observed variable, what is taken from the columns.
    observed: list[list[Take]]
    #: Whether columns are indices.
    has_indices: bool

    def __init__(
        self,
        model: pm.Model,
        block: Mapping[str, np.ndarray],
        public: Sequence[Any],
        compile_kwargs: dict[str, Any] | None,
    ) -> None:
        self._made_up = block
        # Errors on made-up columns may be shown; those on the data are withheld by `BlockedLikelihood`.
        super().__init__(model, public=public, private=False, compile_kwargs=compile_kwargs)
        self._check_longer_block()

    def _first_evaluation(
        self, graphs: ModelGraphs, labels: list[np.ndarray], compile_kwargs: dict[str, Any] | None
    ) -> None:
        exposed = graphs.exposed
        self._columns = {
            v: column_of(stored(v), self._made_up, exposed.names[v]) for v in exposed.private
        }
        inside = [upstream([value]) for value in exposed.values]
        self.observed = [[t for v, t in self._columns.items() if v in found] for found in inside]
        super()._first_evaluation(graphs, labels, compile_kwargs)

    def _compile(self, theta: Variable, rows: Sequence[Variable], *arguments: Any, private: Sequence[Variable] = (), **options: Any) -> None:  # fmt: skip
        super()._compile(theta, rows, *arguments, changing=private, **options)
        dependent = downstream(rows, private)
        self.has_indices = any(
            isinstance(v.owner.op, SELECTIONS) and not dependent.isdisjoint(v.owner.inputs[1:])
            for v in ancestors(rows)
            if v.owner is not None
        )
        graphs = self._batch._graphs
        assert graphs is not None  # nothing was compiled yet
        _refuse_other_rows(graphs.rows, private, self.n_records)
        interpreted_too = graphs._replace(options=_INTERPRETED)
        self._check = BatchLikelihood(rows[0], interpreted_too) if self.has_indices else None

    def _check_longer_block(self) -> None:
        """Refuse a model whose rows are others in a longer block, or cannot be computed alone."""
        theta, found = self._start + 0.1, []
        for times in (1, 3):
            self.load({name: np.concatenate([c] * times) for name, c in self._made_up.items()})
            found.append((self.logp(theta), self._gradients.each(theta)))
        for short, long in zip(*found, strict=True):
            if not np.array_equal(np.concatenate([short] * 3), long, equal_nan=True):
                raise UnsupportedModel(_DEPENDS_ON_ROWS)

    def load(self, block: Mapping[str, np.ndarray]) -> None:
        """Put the columns of a block in place of those before."""
        n_rows = len(next(iter(block.values())))
        arrays = {
            v: np.asarray(extract(block)).astype(v.dtype, order="C", copy=False)
            for v, extract in self._columns.items()
        }
        self.__dict__["n_records"] = n_rows
        for groups in (self._batch, self._gradients, self._check):
            if groups is not None:
                groups.load(arrays, n_rows)

    def check(self) -> None:
        """Raise if an index of the block is out of range: compiled code would read other memory."""
        assert self._check is not None
        self._check([self._start], np.arange(self.n_records))

    def _change_steps(self, new: np.ndarray, old: np.ndarray, scale: float, limit: float) -> int:
        return self._batch.clipped_change(new, old, scale, limit)

    def _plain_change(self, new: np.ndarray, old: np.ndarray) -> float:
        with np.errstate(invalid="ignore"):
            return float(np.nansum(self.logp(new) - self.logp(old)))


class _Interpreted(CompiledModel):
    """Log-prior and rows of a model, not compiled."""

    def __init__(self, model: pm.Model, public: Sequence[Any]) -> None:
        self._assign_records(model, None)
        graphs = self._derive(model, expose(model, PublicArrays(model, public)))
        rows, log_prior = graphs.of_theta({})
        self.parameters = dict(zip(self._names, self._layout, strict=True))
        self.start = self._start
        self._function = interpreted([graphs.theta], [log_prior, *rows])

    def at(self, theta: np.ndarray) -> list[np.ndarray]:
        """The log-prior, and the log-likelihood of each row of each observed variable."""
        with np.errstate(all="ignore"):
            return self._function(theta)


def _example(records: Records, example: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """A made-up block, or the one that was given, if it fits the columns."""
    if example is None:
        return made_up_block(records.layout, _N_ROWS)
    block = {str(name): np.array(column) for name, column in example.items()}
    shapes = {name: column.shape for name, column in block.items()}
    wanted = {name: shape for name, (_, shape) in records.layout.items()}
    if {n: s[1:] for n, s in shapes.items()} != wanted or len({s[:1] for s in shapes.values()}) > 1:
        raise ValueError(
            f"example must have the columns {wanted} (names and shapes of a row), with the same number of rows each; got the shapes {shapes}."
        )
    if min(s[0] for s in shapes.values()) < _LEAST_ROWS:
        raise ValueError(
            f"example must have at least {_LEAST_ROWS} made-up rows, got shapes {shapes}."
        )
    return {name: column.astype(records.layout[name][0]) for name, column in block.items()}


def _check_rows_alone(
    function: Callable[..., Any],
    model: pm.Model,
    block: Mapping[str, np.ndarray],
    public: Sequence[Any],
) -> None:
    """Refuse a model that depends on the number of rows of a block, or on their order."""
    n_rows = len(next(iter(block.values())))
    chosen = np.random.default_rng(0).permutation(n_rows)[: n_rows * 2 // 3]
    other = model_of(function, {name: column[chosen] for name, column in block.items()})
    one, two = _Interpreted(model, public), _Interpreted(other, public)
    if one.parameters != two.parameters:
        raise UnsupportedModel(
            f"The parameters of the model depend on the number of rows of a block: {_shapes(one)} with {n_rows} rows, {_shapes(two)} "
            f"with {len(chosen)}. Parameters of single records cannot be learned privately; for groups, give their public number."
        )
    for shift in (0.0, 0.1):
        prior, *rows = one.at(one.start + shift)
        prior_of_other, *rows_of_other = two.at(one.start + shift)
        pairs = [(prior, prior_of_other), *((r[chosen], s) for r, s in zip(rows, rows_of_other, strict=True))]  # fmt: skip
        if not all(np.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True) for a, b in pairs):
            raise UnsupportedModel(_DEPENDS_ON_ROWS)


def _refuse_other_rows(rows: Sequence[Variable], private: Sequence[Variable], n: int) -> None:
    """Refuse arrays with a row for each record that are no columns: they would stay those of the made-up block."""
    arrays = {v for v in ancestors(rows) if is_array_root(v)}.difference(private)
    if shapes := [stored(v).shape for v in arrays if n in stored(v).shape]:
        raise UnsupportedModel(
            f"The model has an array of shape {shapes[0]}, with as many rows as the block, that is not a column of the data: leave out public= "
            "(covariates='public' says that covariates are), use scalars for what is the same in all rows, or give example= another number of rows."
        )


def _shapes(model: _Interpreted) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, (shape, _) in model.parameters.items()}
