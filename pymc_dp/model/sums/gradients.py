"""Gradients of the log-likelihoods of records, and blocks of records of which sums are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Apply, Variable
from pytensor.scalar import ScalarMaximum
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.model.graphs.compiling import compile_frozen, quiet_compilers
from pymc_dp.model.graphs.data_variables import rebuilt
from pymc_dp.model.graphs.row_gradients import row_gradients
from pymc_dp.model.sums.batch_likelihood import BatchLikelihood, Gathered, RecordGroups, RowGraphs
from pymc_dp.model.sums.exact_sums import sum_of_steps
from pymc_dp.model.sums.record_groups import RecordGroupGradients

CHUNK = 2**16  # numbers per chunk, which with its data stays in the cache
MAX_ROWS = 2**20  # per chunk: sums of so many integers below 2**31 are exact in float64


class RecordGradients(RecordGroups):
    """Gradients of the records, all computed in one reverse pass, see `row_gradients`."""

    def __init__(self, log_prior: Variable, graphs: RowGraphs) -> None:
        super().__init__(graphs)
        self._prior: tuple | None = graphs.theta, log_prior, graphs.options
        self._grad_log_prior: Callable | None = None

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """`RecordLikelihood.grad_log_prior`."""
        if self._grad_log_prior is None:
            assert self._prior is not None
            variable, log_prior, options = self._prior
            gradient = pt.grad(log_prior, variable, disconnected_inputs="ignore")
            with quiet_compilers():
                self._grad_log_prior = compile_frozen([variable], gradient, options)
                self._grad_log_prior(theta)
            self._prior = None
        return self._grad_log_prior(theta)

    def each(
        self,
        theta: np.ndarray,
        index: np.ndarray | None = None,
        directions: np.ndarray | None = None,
    ) -> np.ndarray:
        """``directions.T @ gradient`` of each record, not clipped, as rows of a matrix."""
        parts = [*self.vectors(theta, index, directions)]
        n_columns = len(theta) if directions is None else directions.shape[-1]
        return np.concatenate(parts) if parts else np.zeros((0, n_columns))

    def of(self, theta: np.ndarray, gathered: list[Gathered]) -> np.ndarray:
        """Gradients of records that were gathered, as rows of a matrix."""
        gradients = [group.at(theta, None) for group in self.groups]
        with np.errstate(invalid="ignore", over="ignore"):
            return reduce(add, [of(g) for of, g in zip(gradients, gathered, strict=True)])

    @property
    def chunk(self) -> int:
        """Number of records whose gradients are computed at once.

        A multiple of 64, so that each row has the same place in vector instructions in all chunks.
        """
        width = max(group.width for group in self.groups)
        return min(max(64, CHUNK // width // 64 * 64), MAX_ROWS)

    def vectors(
        self, theta: np.ndarray, index: np.ndarray | None, directions: np.ndarray | None
    ) -> Iterator[np.ndarray]:
        """``directions.T @ gradient`` of each record, as rows of matrices, one for each chunk of records."""
        n_records = self.n_records if index is None else len(index)
        if n_records == 0:
            return
        gradients = [group.at(theta, directions) for group in self.groups]
        for begin in range(0, n_records, length := self.chunk):
            chunk = slice(begin, min(begin + length, n_records))
            records = chunk if index is None else index[chunk]
            with np.errstate(invalid="ignore", over="ignore"):
                gathered = [group.gather(records) for group in self.groups]
                yield reduce(add, [of(g) for of, g in zip(gradients, gathered, strict=True)])

    def _compile(self, group: RowGraphs) -> RecordGroupGradients:
        index = pt.vector("index", dtype="int64")
        gradients = row_gradients(group.theta, _with_middles(group.rows), index)
        return RecordGroupGradients(gradients, index, group)


class LatestValues:
    """Vectors at the last two positions that were asked for. Copies and pickles are empty: the vectors are private."""

    def __init__(self) -> None:
        self._found: dict[bytes, np.ndarray] = {}

    def __reduce__(self) -> tuple:
        return LatestValues, ()

    def at(self, theta: np.ndarray, compute: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The vector at a position: kept, or computed."""
        key = theta.tobytes()
        found = self._found.pop(key, None)
        self.keep(theta, compute(theta) if found is None else found)
        return self._found[key]

    def keep(self, theta: np.ndarray, values: np.ndarray) -> None:
        """Keep the vector at a position, and that of the position before."""
        self._found[theta.tobytes()] = values
        while len(self._found) > 2:
            del self._found[next(iter(self._found))]

    def forget(self, but: np.ndarray | None = None) -> None:
        """Keep nothing, or the vector at one position only."""
        kept = {} if but is None else {but.tobytes(): self._found.get(but.tobytes())}
        self._found = {key: values for key, values in kept.items() if values is not None}


class Block:
    """Records that are computed at once: all of a compiled model, or some by number. Terms are functions of it.

    With `latest`, log-likelihoods of all records at the last positions are kept.
    """

    def __init__(
        self,
        batch: BatchLikelihood,
        gradients: RecordGradients,
        index: np.ndarray | None = None,
        latest: LatestValues | None = None,
    ) -> None:
        self._batch, self._gradients, self._index = batch, gradients, index
        self._latest = latest if index is None else None

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihood of each record; ``-inf`` where it is not a number."""
        if self._index is not None:
            return self._batch([theta], self._index)[0]
        if self._latest is None:
            return self._batch.all_records(theta)
        return self._latest.at(theta, self._batch.all_records)

    def keep(self, theta: np.ndarray) -> None:
        """Keep log-likelihoods at a position, if any are kept."""
        if self._latest is not None:
            self.logp(theta)

    def change(self, new: np.ndarray, old: np.ndarray, scale: float, limit: float) -> int:
        """Sum over records of the change of their log-likelihoods, in units, each within the limit."""
        if self._latest is None:
            return self._batch.clipped_change(new, old, scale, limit)
        before, after = self.logp(old), self.logp(new)
        return sum_of_steps(after, before, scale, limit)

    def plain_change(self, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        """Sum of the changes that are numbers."""
        before, after = self.logp(old), self.logp(new)
        with np.errstate(invalid="ignore"):
            return np.array([np.nansum(after - before)])

    def vectors(
        self, theta: np.ndarray, directions: np.ndarray | None, with_logp: bool = False
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """``directions.T @ gradient`` of each record, as rows of matrices, one for each chunk; log-likelihoods or nothing."""
        begin, logp = 0, np.empty(0)
        for vectors in self._gradients.vectors(theta, self._index, directions):
            if with_logp:
                records = np.arange(begin, begin := begin + len(vectors))
                part = records if self._index is None else self._index[records]
                (logp,) = self._batch([theta], part)
            yield vectors, logp

    @property
    def by_column(self) -> bool:
        """Whether sums are made column by column: decided by the model, and not by chunk, as the two differ in rounding."""
        return all(group.by_column for group in self._gradients.groups)

    def clipped_sum(
        self, theta: np.ndarray, directions: np.ndarray | None, unit: float, length: float, keeps_logp: bool,
    ) -> np.ndarray | None:  # fmt: skip
        """Sum of vectors, in units, each shortened to a length, by a compiled loop over rows in the cache; None without one.

        Log-likelihoods are computed from the same rows at once.
        """
        groups = self._gradients.groups
        if self._index is not None or len(groups) > 1 or not groups[0].has_loop:
            return None
        if self._latest is None or not keeps_logp or not self._batch.has_blocks:
            if keeps_logp:
                self.keep(theta)
            return groups[0].clipped_sum(theta, directions, unit, length, None)
        logp = np.empty(self._batch.n_records)
        callback = self._batch.block_callback(theta, logp)
        found = groups[0].clipped_sum(theta, directions, unit, length, callback)
        self._latest.keep(theta, logp)
        return found

    def plain_gradients(self, theta: np.ndarray, directions: np.ndarray | None) -> np.ndarray:
        """Sum of the vectors that are finite."""
        total = np.zeros(len(theta) if directions is None else directions.shape[-1])
        for vectors, _ in self.vectors(theta, directions):
            finite = np.isfinite(vectors).all(axis=1)
            with np.errstate(over="ignore", invalid="ignore"):
                total += vectors.sum(axis=0) if finite.all() else vectors[finite].sum(axis=0)
        return total


def _with_middles(graphs: Sequence[Variable]) -> list[Variable]:
    """Graphs in which the derivative of ``maximum(a, b)`` at its kink is the middle one, 1/2.

    PyTensor has 1 there, but the middle one for the absolute value. `freeze` writes softplus with
    both, and their kinks cancel only if both have the middle one. Chains do visit the kinks: where
    all coefficients are 0, as at many initial points, all linear predictors are 0.
    """

    def middle(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        is_maximum = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, ScalarMaximum)
        if not is_maximum or node.outputs[0].dtype != "float64":
            return None
        a, b = inputs
        return [pt.switch(pt.eq(a, b), 0.5 * (a + b), node.op(a, b))]

    return rebuilt(graphs, {}, middle)
