"""The operations of `ordered_products` in JAX; imported where JAX is used, as it need not be installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pytensor.link.jax.dispatch import jax_funcify

from pymc_dp.model.graphs.ordered_products import OrderedDot, OrderedSolve

__all__: list[str] = []


@jax_funcify.register(OrderedDot)
def _(op: OrderedDot, **_: Any) -> Callable:
    def dot(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(x[:, :, None] * y[None], axis=1)

    return dot


@jax_funcify.register(OrderedSolve)
def _(op: OrderedSolve, **_: Any) -> Callable:
    def solve(a: jax.Array, b: jax.Array) -> jax.Array:
        """By substitution, a column of the matrix after the other; NaN if a diagonal entry is 0."""
        order = range(len(b)) if op.lower else range(len(b) - 1, -1, -1)
        for i in order:
            if not op.unit_diagonal:
                b = b.at[i].divide(jnp.where(a[i, i] != 0.0, a[i, i], jnp.nan))
            later = slice(i + 1, None) if op.lower else slice(0, i)
            b = b.at[later].add(-a[later, i, None] * b[i])
        return b

    return solve
