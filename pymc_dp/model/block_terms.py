"""Terms of records in blocks, which are loaded into one compiled model: here, on a worker or at a site."""

from __future__ import annotations

import threading

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from pymc_dp.data import Records
from pymc_dp.model.block_model import BlockModel
from pymc_dp.model.sums.gradients import Block
from pymc_dp.model.terms import Term
from pymc_dp.model.withheld import evaluate

#: The model of a block has one block at a time, also on a worker with several threads.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class LogLikelihoods:
    """Log-likelihoods of records at some positions, a row each: not a term, as they are not summed."""

    points: Sequence[np.ndarray]

    def of(self, block: Block) -> np.ndarray:
        """Those of a block, shape ``(n_points, n_rows)``."""
        return np.array([block.logp(point) for point in self.points])


def of_blocks(
    records: Records,
    index: np.ndarray | None,
    model: BlockModel,
    private: bool,
    term: Term | LogLikelihoods,
) -> Iterator[np.ndarray]:
    """Value of a term for one block of all records after the other, or of some records by number."""
    for rows in _blocks(records, index):
        model.load(rows)
        yield evaluate(
            "when its log-likelihood was evaluated", term.of, model.block, private=private
        )


def of_shard(
    records: Records,
    index: np.ndarray | None,
    model: BlockModel,
    private: bool,
    term: Term | LogLikelihoods,
) -> np.ndarray:
    """On a worker: the sum over all records of a shard, or over some; log-likelihoods of records side by side."""
    with _ONE_AT_A_TIME:
        found = [*of_blocks(records, index, model, private, term)]
    return (
        np.concatenate(found, axis=1) if isinstance(term, LogLikelihoods) else np.sum(found, axis=0)
    )


def _blocks(records: Records, index: np.ndarray | None) -> Iterator[dict[str, np.ndarray]]:
    if index is None:
        with closing(records.blocks()) as blocks:
            yield from blocks
        return
    for begin in range(0, len(index), records.block_rows):
        yield records.take(index[begin : begin + records.block_rows])
