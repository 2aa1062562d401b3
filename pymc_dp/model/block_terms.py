"""Terms of reductions: what is asked of each block of records, here, on a worker or at a site."""

from __future__ import annotations

import threading

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.data import Records
from pymc_dp.model.block_model import BlockModel
from pymc_dp.model.withheld import evaluate

__all__ = ["Term", "of_blocks", "of_shard"]

#: The model of a block has one block at a time, also on a worker with several threads.
_ONE_AT_A_TIME = threading.Lock()


class Term(NamedTuple):
    """A method of the model of a block, by name, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()

    def of(self, model: BlockModel) -> Any:
        """The value for the block that is loaded."""
        return getattr(model, self.name)(*self.arguments)


def of_blocks(
    records: Records, index: np.ndarray | None, model: BlockModel, private: bool, term: Term
) -> Iterator[Any]:
    """Value of a term for one block of all records after the other, or of some records by number."""
    for block in _blocks(records, index):
        model.load(block)
        yield evaluate("when its log-likelihood was evaluated", term.of, model, private=private)


def of_shard(
    records: Records, index: np.ndarray | None, model: BlockModel, private: bool, term: Term
) -> Any:
    """On a worker: the sum over all records of a shard, or over some; log-likelihoods of records side by side."""
    with _ONE_AT_A_TIME:
        found = [*of_blocks(records, index, model, private, term)]
    return np.concatenate(found, axis=1) if term.name == "logp_of" else sum(found)


def _blocks(records: Records, index: np.ndarray | None) -> Iterator[dict[str, np.ndarray]]:
    if index is None:
        with closing(records.blocks()) as blocks:
            yield from blocks
        return
    for begin in range(0, len(index), records.block_rows):
        yield records.take(index[begin : begin + records.block_rows])
