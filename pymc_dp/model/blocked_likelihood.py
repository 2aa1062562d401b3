"""Likelihood of records in blocks, which are read one after the other: on disk, or too many for copies.

The model is compiled once, with made-up columns in its ``pm.Data``; then the columns of each block are put in their
place. Each term is summed in whole numbers, so that sums do not depend on the blocks.
"""

from __future__ import annotations

import copy
import math
import os
import threading

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.data import Records, Shards, Sites
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.block_model import BlockModel, holding, made_up
from pymc_dp.model.compiled_model import CompiledModel
from pymc_dp.model.data_keys import new_digest
from pymc_dp.model.sums.batch_likelihood import checked_index
from pymc_dp.model.sums.gradients import Block
from pymc_dp.model.terms import Term
from pymc_dp.model.withheld import evaluate

#: Parameters, prior and description are those of the model of a block.
_OF_THE_BLOCK = (
    "_names", "_layout", "_slices", "_start", "_log_prior", "_gradients", "n_dim", "is_binary", "shapes", "fingerprint",
    "public", "model_token",
)  # fmt: skip
_NOT_BY_SITES = "Sites tell sums of clipped terms over all of their records: use a sampler that reads all records, and a finite clip bound."
#: The model of a block has one block at a time, also on a worker with several threads.
_ONE_AT_A_TIME = threading.Lock()


class BlockedLikelihood(CompiledModel, Likelihood):
    """Likelihood of records that are read in blocks, and the prior of their model.

    Nothing is held in memory but a block, those that are read ahead, and what is computed from one block. No
    log-likelihoods are kept between calls: a decision evaluates both of its positions, while it reads the data once.

    Parameters
    ----------
    model : pm.Model
        Each column that it needs is a ``pm.Data`` with the name of the column: any number of rows of the same shape,
        such as ``pm.Data("x", np.zeros((1, 3)))``, whose values are not used. All other ``pm.Data`` are declared by
        `public`. What is computed from columns is computed with ``pm.math``, row by row. The model is not changed.
    records : Records, Shards or Sites
        The columns; each row is a record.
    public : sequence of str or array, optional
        Arrays of the model that do not hold data of records, see :class:`~pymc_dp.model.RecordLikelihood`.
    private : bool
        Whether the text of errors raised on the data is withheld. True by default.
    compile_kwargs : dict, optional
        Arguments for ``pytensor.function``; Numba by default.

    Attributes
    ----------
    model : pm.Model
        That of the argument, which never holds data of the records.
    records : Records, Shards or Sites
        Those of the argument.
    n_records, n_dim : int
        Numbers of records, which is public, and of parameters.
    slices, public, row_keys
        Places of parameters, declared arrays, and keyed hashes of columns: see :class:`~pymc_dp.model.RecordLikelihood`.

    Raises
    ------
    UnsupportedModel
        If the model cannot be sampled privately as written, or depends on more than the columns of a block.
    ModelError
        If the model raises on the data.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     y = pm.Data("y", np.zeros(1))  # its values are not used
    ...     _ = pm.Normal("height", pm.Normal("mu", 0, 10), 1.0, observed=y)
    >>> records = dp.Records({"y": np.zeros(100)}, block_rows=40)
    >>> likelihood = dp.model.BlockedLikelihood(model, records)
    >>> likelihood.clipped_grad(np.array([1.0]), bound=0.5).round(6)
    array([-50.])
    """

    def __init__(
        self,
        model: pm.Model,
        records: Records | Shards | Sites,
        *,
        public: Sequence[Any] = (),
        private: bool = True,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self._block = BlockModel(model, records.layout, public, compile_kwargs, records.n_records)
        self.records, self.n_records, self._private = records, records.n_records, private
        self.__dict__ |= {name: vars(self._block)[name] for name in _OF_THE_BLOCK}
        self.is_remote, self._process = not isinstance(records, Records), os.getpid()
        if isinstance(records, Shards):
            self._on_workers = records.hold(self._block)
        if isinstance(records, Sites):
            self.assumed = records.assumed
            self.noise_laws = ("gaussian",) if records.adds_noise else self.noise_laws
        digests = records.digests(new_digest)
        self.containers = (records,)
        self.row_keys = {
            rv.name: tuple(digests[name] for name in names)
            for rv, names in zip(model.observed_RVs, self._block.observed, strict=True)
        }

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_on_workers": None}  # of no use in another process

    def __repr__(self) -> str:
        return f"BlockedLikelihood({self.records!r}, parameters={list(self.slices)})"

    @contextmanager
    def some_rows(self, n_rows: int, rng: np.random.Generator, *, public: bool) -> Iterator[None]:
        """Within this context the model holds made-up rows, `n_rows` at most; of public covariates those of random records."""
        n_rows = min(n_rows, self.n_records)
        rows = made_up(self._block.layout, n_rows)
        if public:
            read = self.records.take(np.sort(rng.choice(self.n_records, n_rows, replace=False)))
            rows |= {name: read[name] for name in rows.keys() - {*chain(*self._block.observed)}}
        with holding(self.model, rows):
            yield

    def noisy(self, term: Term, law: Any, bits: Any) -> np.ndarray:
        """See :class:`~pymc_dp.model.Likelihood`; sites may add the noise themselves."""
        if not (isinstance(self.records, Sites) and self.records.adds_noise):
            return super().noisy(term, law, bits)
        with self.records.adding(law):
            return np.ldexp(self.total(term).astype(np.float64), term.exponent)

    def check_reachable(self, *, with_noise: bool = False) -> None:
        """See :class:`~pymc_dp.model.Likelihood`."""
        if isinstance(self.records, Sites) and self.records.adds_noise and not with_noise:
            raise ValueError(
                "These sites tell sums with their own noise only, as DPScore needs them: use dp.sample(epsilon=, delta=). Nothing was accessed."
            )
        if self.is_remote and os.getpid() != self._process:
            raise RuntimeError(
                "Records on a cluster or at sites are asked by the process that is connected to them, and not by others: pass cores=1 to "
                "pm.sample. Nothing was accessed."
            )
        if not isinstance(self.records, Records):
            self.records.check_connected()

    @property
    def rehearsal(self) -> BlockedLikelihood:
        """The same with made-up records, as many as in a block: to compile, no private record is read."""
        other = copy.copy(self)
        n_rows = min(self.records.block_rows, self.n_records)
        other.records, other.n_records = Records(made_up(self._block.layout, n_rows)), n_rows
        return other

    def forget(self, but: np.ndarray | None = None) -> None:
        """Nothing is kept."""

    def logp_at(self, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Log-likelihood of some records: as of :class:`~pymc_dp.model.RecordLikelihood`."""
        points = [self._checked(point) for point in np.atleast_2d(theta)]
        index = checked_index(index, self.n_records)
        if isinstance(self.records, Sites):
            raise ValueError(_NOT_BY_SITES)
        found = np.empty((len(points), 0))
        if len(index):
            parts = self.map(LogLikelihoods(points), index)
            found = np.concatenate([*parts], axis=1)
            if isinstance(self.records, Shards):
                found = found[:, self.records.places(index)]
        return found if np.ndim(theta) == 2 else found[0]

    def map(
        self, term: Term | LogLikelihoods, index: np.ndarray | None = None
    ) -> Iterable[np.ndarray]:
        """What a term gives for each block, for each shard, or for all sites."""
        if isinstance(self.records, Sites):
            if index is not None or getattr(term, "bound", 0.0) == math.inf:
                raise ValueError(_NOT_BY_SITES)
            return [self.records.total(type(term).__name__, *(getattr(term, f.name) for f in fields(term)))]  # fmt: skip
        if isinstance(self.records, Shards):
            return self.records.map(of_shard, self._on_workers, self._private, term, index=index)
        return of_blocks(self.records, index, self._block, self._private, term)


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
