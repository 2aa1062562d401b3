"""Draws of a posterior as positions on the unconstrained scale."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pymc as pm

from pymc_dp.model.graphs.data_variables import interpreted


def positions(model: pm.Model, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Draws of a model's free variables, as vectors of its value variables; ValueError if they do not fit its variables."""
    free = model.free_RVs
    if missing := [rv.name for rv in free if rv.name not in values]:
        raise ValueError(f"The draws lack {', '.join(missing)}, free variables of the model; they have {', '.join(values) or 'none'}.")  # fmt: skip
    graphs = []
    for rv in free:
        transform = model.rvs_to_transforms[rv]
        graphs.append(rv * 1 if transform is None else transform.forward(rv, *rv.owner.inputs))
    function = interpreted(free, graphs)  # the variables themselves are the inputs
    arrays = [np.asarray(values[rv.name], dtype=rv.dtype) for rv in free]
    rows = []
    for draw in zip(*arrays, strict=True):
        try:
            rows.append(np.concatenate([np.ravel(part) for part in function(*draw)]))
        except (TypeError, ValueError):
            shapes = {rv.name: np.shape(part) for rv, part in zip(free, draw, strict=True)}
            raise ValueError(f"The draws have other shapes than the model's free variables: {shapes}.") from None  # fmt: skip
    theta = np.array(rows, dtype=np.float64)
    if not np.isfinite(theta).all():
        raise ValueError("A draw is not finite, or on the boundary of a variable's domain: are these draws of this model?")  # fmt: skip
    return theta
