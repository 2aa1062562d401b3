"""Checks that a model is a function of each row: not of how many rows a block has, nor of their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.compiled_model import CompiledModel
from pymc_dp.model.graphs.data_variables import interpreted, is_array_root, stored
from pymc_dp.model.graphs.exposed import expose
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.made_up_block import model_of

DEPENDS_ON_ROWS = (
    "The model depends on the number of rows of a block, or on their order, for instance by len(y), np.arange(len(y)) or a mean "
    "over rows: use public numbers, and add what differs between records to the columns."
)
#: The same row may round differently in other places, by 1e-13 or so; a row that depends on others differs by more.
ROUNDING: Any = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}


def check_rows_alone(
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
        if not all(np.allclose(a, b, **ROUNDING) for a, b in pairs):
            raise UnsupportedModel(DEPENDS_ON_ROWS)


def refuse_other_rows(rows: Sequence[Variable], private: Sequence[Variable], n: int) -> None:
    """Refuse arrays with a row for each record that are no columns: they would stay those of the made-up block."""
    arrays = {v for v in ancestors(rows) if is_array_root(v)}.difference(private)
    if shapes := [stored(v).shape for v in arrays if n in stored(v).shape]:
        raise UnsupportedModel(
            f"The model has an array of shape {shapes[0]}, with as many rows as the block, that is not a column of the data: leave out public= "
            "(covariates='public' says that covariates are), use scalars for what is the same in all rows, or give example= another number of rows."
        )


def _shapes(model: _Interpreted) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, (shape, _) in model.parameters.items()}


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
