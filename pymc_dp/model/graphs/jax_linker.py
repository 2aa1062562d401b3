"""Compilation by JAX: in double precision, to arrays of NumPy.

PyTensor switches JAX to double precision when it first uses it. If a program switches it off again, JAX computes in
single precision without a word, so that is an error here.
"""

from __future__ import annotations

import warnings

from collections.abc import Callable
from typing import Any

import numpy as np

from pytensor.compile.mode import Mode, get_mode
from pytensor.link.jax.linker import JAXLinker

from pymc_dp.errors import UnsupportedModel

__all__ = ["DoubleJAXLinker", "in_double_precision", "is_jax"]


class DoubleJAXLinker(JAXLinker):
    """JAX's linker for functions that return arrays of NumPy, and raise where JAX has no float64."""

    def fgraph_convert(self, *args: Any, **kwargs: Any) -> Any:
        """As of JAX's linker, with the operations of this package."""
        from pymc_dp.model.graphs import jax_products  # noqa: F401 (registers its operations)

        with warnings.catch_warnings():
            # That JAX skips assertions: indices are checked before, by an interpreted function.
            warnings.filterwarnings("ignore", message="Skipping", category=UserWarning)
            return super().fgraph_convert(*args, **kwargs)

    def jit_compile(self, fn: Callable) -> Callable:
        """As of JAX's linker, but for the results."""
        compiled = super().jit_compile(fn)

        def call(*arguments: Any) -> list[np.ndarray]:
            _check_double_precision()
            # Copies, as JAX's own arrays cannot be written to.
            return [np.array(output) for output in compiled(*arguments)]

        return call


def in_double_precision(mode: Any) -> Any:
    """A compilation mode, with `DoubleJAXLinker` in place of JAX's.

    Raises
    ------
    UnsupportedModel
        If JAX is not installed, or computes in single precision.
    """
    mode = get_mode(mode)
    if type(mode.linker) is not JAXLinker:
        return mode
    try:
        # Sets JAX's precision, at the first import in a process.
        import pytensor.link.jax.dispatch  # noqa: F401
    except ImportError:
        raise UnsupportedModel(
            "The mode JAX needs JAX: install it, or pymc-dp with its extra 'jax'."
        ) from None
    _check_double_precision()
    return Mode(DoubleJAXLinker(), mode.provided_optimizer)


def is_jax(mode: Any) -> bool:
    """Whether a compilation mode is one of JAX."""
    return isinstance(get_mode(mode).linker, JAXLinker)


def _check_double_precision() -> None:
    import jax

    config: Any = jax.config  # its attributes have no types
    if not config.jax_enable_x64:
        raise UnsupportedModel(
            "JAX computes in single precision, in which sums over records are not those that the privacy of a run is "
            "about: leave PyTensor's floatX at 'float64', and jax_enable_x64 on."
        )
