"""Reductions over records in blocks, which are read one after the other: on disk, or too many for copies.

The model is a function of a block. It is built and compiled once, on made-up columns; then the columns of each
block are put in their place. Each reduction is a sum of whole numbers, so that it does not depend on the blocks.
"""

from __future__ import annotations

import copy

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.data import Records
from pymc_dp.model.block_model import BlockModel
from pymc_dp.model.data_keys import new_digest
from pymc_dp.model.made_up_block import example_block, made_up_block, model_of
from pymc_dp.model.reductions import Reductions
from pymc_dp.model.rows_alone import check_rows_alone
from pymc_dp.model.sums.batch_likelihood import checked_index
from pymc_dp.model.sums.exact_sums import grid
from pymc_dp.model.sums.vector_sums import product_exponent
from pymc_dp.model.withheld import evaluate

__all__ = ["BlockedLikelihood"]


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
        block = example_block(records.layout, example)
        self._function, self._made_up, self.model = function, block, model_of(function, block)
        check_rows_alone(function, self.model, block, public)
        self._block = BlockModel(self.model, block, public, compile_kwargs)
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

    @property
    def rehearsal(self) -> BlockedLikelihood:
        """The same with made-up records, as many as in a block: to compile, no private record is read."""
        other = copy.copy(self)
        n_rows = min(self.records.block_rows, self.n_records)
        rows = {name: np.resize(c, (n_rows, *c.shape[1:])) for name, c in self._made_up.items()}
        other.records, other.n_records = Records(rows), n_rows
        return other

    def forget(self, but: np.ndarray | None = None) -> None:
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

    def _loaded(self, index: np.ndarray | None = None) -> Iterator[BlockModel]:
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
        self, term: Callable[[BlockModel], Any], index: np.ndarray | None = None, zero: Any = 0
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
