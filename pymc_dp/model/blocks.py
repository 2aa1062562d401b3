"""Functions of rows, compiled, and loops over blocks of rows that stay in the cache."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt

from llvmlite import ir
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from threadpoolctl import ThreadpoolController

from pymc_dp.model.compiling import compile_frozen
from pymc_dp.model.indexing import Gathered
from pymc_dp.model.roots import stored

__all__ = ["LARGE", "RowFunction", "compiled_loop", "fetch", "is_numba"]

BLOCK = 2**14  # numbers per block: the cache of a core holds some such arrays
LARGE = 2**17  # numbers from which on a loop over blocks is worth compiling
PER_THREAD = 2**20  # numbers that take much longer than starting a thread
LINE = 64  # bytes that a memory hands over together

# Without flags: what a loop calls would inherit them.
compiled_loop = numba.njit(nogil=True)


@intrinsic
def _fetch(_: Any, data: Any, index: Any) -> tuple[Any, Callable]:
    """Ask the memory for a byte of an array: a hint to the processor, without a result."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        number = ir.IntType(32)
        law = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", (place.type,), law)
        builder.call(hint, [place, number(0), number(2), number(1)])  # to read; near; data
        return context.get_dummy_value()

    return numba.types.void(data, index), generate


@compiled_loop
def fetch(data: np.ndarray) -> None:
    """Ask the memory for bytes that are going to be read, and do not wait for them."""
    for k in range(0, len(data), LINE):
        _fetch(data, k)


class RowFunction:
    """A graph of some rows, compiled.

    Parameters
    ----------
    inputs : list of Variable
        Inputs of the graph that have no rows.
    index : Variable
        Vector of row numbers that the graph is a function of.
    gathered : sequence of Gathered
        Further inputs: rows of the data.
    output : Variable
    n_rows : int
        0 if rows are only asked for by their numbers: then there is no loop.
    options : dict
    """

    def __init__(
        self,
        inputs: list[Variable],
        index: Variable,
        gathered: Sequence[Gathered],
        output: Variable,
        n_rows: int,
        options: dict[str, Any],
    ) -> None:
        begin, end = pt.lscalars("begin", "end")
        numbers, arrays = index.type(), [g.rows.type() for g in gathered]
        rows = {index: numbers[begin:end]}
        for g, array in zip(gathered, arrays, strict=True):
            rows[g.rows] = array[(*[slice(None)] * g.axis, slice(begin, end))]
        inputs = [*inputs, begin, end, numbers, *arrays]
        output = graph_replace(output, rows, strict=False)
        self.function: Any = compile_frozen(inputs, output, options)
        self._gathered = [(g.data, g.axis) for g in gathered]
        self.refresh()
        self._n_rows, self._n_inputs = n_rows, len(inputs)
        #: Numbers of data in a row, at least 1.
        self.width = max(1, sum(data.size // data.shape[axis] for data, axis in self.data))

    def refresh(self) -> None:
        """Take the data from where they are stored, again."""
        # Numba compiles again for read-only arrays, and for other layouts.
        self.data = [(np.require(stored(v), None, ["C", "W"]), axis) for v, axis in self._gathered]

    def widest(self) -> np.ndarray:
        """The data that take most, as a matrix of bytes with a row for each row; without bytes if there are none."""
        tables = [data for data, axis in self.data if axis == 0 and data.size]
        if not tables:
            return np.empty((self._n_rows, 0), dtype=np.uint8)
        most = max(tables, key=lambda data: data.nbytes)
        return most.reshape(len(most), -1).view(np.uint8)

    def gather(self, rows: slice | np.ndarray) -> list[np.ndarray]:
        """Some rows of the data, by their numbers or as a slice, as the function wants them."""
        if isinstance(rows, slice):
            limits, numbers = (rows.start, rows.stop), _numbers(self._n_rows)
            arrays = [data for data, _ in self.data]
        else:
            limits, numbers = (0, len(rows)), rows
            arrays = [data.take(rows, axis) for data, axis in self.data]
        return [*map(np.asarray, limits), numbers, *arrays]

    def __call__(self, values: Sequence[np.ndarray], gathered: list[np.ndarray]) -> np.ndarray:
        """The output for values of the inputs, and for rows from `gather`."""
        return self.function(*values, *gathered)

    @property
    def has_loop(self) -> bool:
        """Whether there are so many rows that a loop pays, and it can be compiled."""
        return self._n_rows * self.width > LARGE and is_numba(self.function)

    def compiled(self, values: Sequence[np.ndarray]) -> tuple[CPUDispatcher, tuple, tuple]:
        """What a `compiled_loop` calls, with what it takes before and after the limits of a block."""
        hidden = [c.storage[0] for c in self.function.input_storage[self._n_inputs :]]
        after = _numbers(self._n_rows), *(array for array, _ in self.data), *hidden
        return self.function.vm.jit_fn, tuple(values), after

    def loop(
        self, loop: Callable, values: Sequence[np.ndarray], width: int, *arguments: Any
    ) -> list[Any]:
        """Results of a `compiled_loop` over all rows, in blocks, spread over threads.

        Blocks and what is computed for each are the same for any number of threads.

        Parameters
        ----------
        loop : callable
            Called with what `compiled` returns, the first row and the one to end before, the length
            of blocks, and `arguments`.
        values : sequence of array
            Of the inputs.
        width : int
            Numbers that a row takes.
        """
        # Multiples of 64, so that rows have the same place in vector instructions in all blocks.
        length = max(64, BLOCK // width // 64 * 64)
        n_threads = self._n_rows * width // PER_THREAD
        n_threads = min(n_threads, blas_threads()) if n_threads > 1 else 1
        share = math.ceil(self._n_rows / (length * n_threads)) * length
        what = self.compiled(values)

        def run(begin: int) -> Any:
            return loop(*what, begin, min(begin + share, self._n_rows), length, *arguments)

        first, *others = range(0, self._n_rows, share)
        if not others:
            return [run(first)]
        # Threads that live on would be in the way of forks.
        with ThreadPoolExecutor(len(others)) as pool:
            results = [pool.submit(run, begin) for begin in others]
            return [run(first), *(result.result() for result in results)]


def is_numba(function: Any) -> bool:
    """Whether Numba has compiled a function of PyTensor's into one that a loop may call."""
    return isinstance(getattr(function.vm, "jit_fn", None), CPUDispatcher)


@lru_cache(maxsize=4)
def _numbers(n: int) -> np.ndarray:
    return np.arange(n)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")  # takes milliseconds


def blas_threads() -> int:
    """How many threads BLAS may use: PyMC shares out the cores among chains in this way."""
    return min((library["num_threads"] or 1 for library in _blas().info()), default=1)
