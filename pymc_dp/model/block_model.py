"""The model of one block, whose made-up columns are replaced by those of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm

from pytensor.graph.basic import Variable

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.compiled_model import ModelGraphs
from pymc_dp.model.graphs.data_variables import stored, upstream
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.model.made_up_block import Take, column_of
from pymc_dp.model.rows_alone import DEPENDS_ON_ROWS, ROUNDING, refuse_other_rows
from pymc_dp.model.sums.gradients import Block


class BlockModel(RecordLikelihood):
    """The likelihood of one block, in which other columns are put in place of the made-up ones."""

    #: For each observed variable, what is taken from the columns.
    observed: list[list[Take]]

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
        graphs = self._batch._graphs
        assert graphs is not None  # nothing was compiled yet
        refuse_other_rows(graphs.rows, private, self.n_records)

    def _check_longer_block(self) -> None:
        """Refuse a model whose rows are others in a longer block, or cannot be computed alone."""
        theta, found = self._start + 0.1, []
        for times in (1, 3):
            self.load({name: np.concatenate([c] * times) for name, c in self._made_up.items()})
            found.append((self.logp(theta), self._gradients.each(theta)))
        for short, long in zip(*found, strict=True):
            if not np.allclose(np.concatenate([short] * 3), long, **ROUNDING):
                raise UnsupportedModel(DEPENDS_ON_ROWS)

    def load(self, block: Mapping[str, np.ndarray]) -> None:
        """Put the columns of a block in place of those before."""
        n_rows = len(next(iter(block.values())))
        arrays = {
            v: np.asarray(extract(block)).astype(v.dtype, order="C", copy=False)
            for v, extract in self._columns.items()
        }
        self.__dict__["n_records"] = n_rows
        for groups in (self._batch, self._gradients):
            groups.load(arrays, n_rows)

    @property
    def block(self) -> Block:
        """The rows that are loaded."""
        return Block(self._batch, self._gradients)
