"""Compiled draws of random variables, again and again, from generators that are handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr

from pymc.pytensorf import collect_default_updates, find_rng_nodes
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import toposort
from pytensor.link.vm import VMLinker

from pymc_dp.model.additive import with_constants
from pymc_dp.model.compiling import NumbaFunction, freeze

__all__ = ["Drawing"]

FEW = 30  # categories up to which a comparison with each is written out, which compiles fast


def _category(u: Variable, p: Variable) -> Variable:
    """How many of the cumulative probabilities, without the last, a number is not below."""
    n = p.type.shape[-1]
    if n is None or n > FEW:
        return (u[..., None] >= pt.cumsum(p, -1)[..., :-1]).sum(-1)
    below = [sum(p[..., i] for i in range(k + 1)) for k in range(n - 1)]
    return sum((u >= c).astype("int64") for c in below) if below else pt.zeros_like(u)


# What NumPy draws, and what becomes of it: functions of parameters and of draws that have none.
_STANDARD: dict[type, tuple[str, Callable[..., Variable]]] = {
    ptr.NormalRV: ("standard_normal", lambda z, mu, sigma: mu + sigma * z),
    ptr.HalfNormalRV: ("standard_normal", lambda z, mu, sigma: mu + sigma * pt.abs(z)),
    ptr.LogNormalRV: ("standard_normal", lambda z, mu, sigma: pt.exp(mu + sigma * z)),
    ptr.ExponentialRV: ("standard_exponential", lambda e, scale: scale * e),
    ptr.UniformRV: ("random", lambda u, low, high: low + (high - low) * u),
    ptr.BernoulliRV: ("random", lambda u, p: u < p),
    ptr.CategoricalRV: ("random", _category),
}

# For all others: NumPy draws, node by node. Where PyTensor 2.38 draws in Numba, Cauchy variables
# come out with location and scale mixed up.
_INTERPRETED = Mode(
    VMLinker(use_cloop=False, c_thunks=False),
    RewriteDatabaseQuery(include=["canonicalize", "random_make_inplace"]),
)


class Drawing:
    """Function that draws, from the distributions that random variables in graphs have.

    Parameters
    ----------
    inputs : sequence of Variable
    outputs : sequence of Variable
        Graphs with random variables in them, whose states are not touched.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self._n_outputs = len(outputs)
        graphs, drawn = _standardized(with_constants(outputs))
        #: Names of methods of a generator, and shapes.
        self._standard = [(kind, v.type.shape) for v, kind in drawn.items()]
        self._n_generators = 0
        if drawn and not find_rng_nodes(graphs):
            self._function: Callable = NumbaFunction([*drawn, *inputs], freeze(graphs))
        else:
            self._standard = []
            shared = find_rng_nodes(outputs)
            generators = [pt.random.type.random_generator_type() for _ in shared]
            self._n_generators = len(generators)
            graphs = graph_replace(outputs, dict(zip(shared, generators, strict=True)))
            updates = collect_default_updates(graphs, inputs=generators, must_be_shared=False)
            self._function = pytensor.function(
                [*(pytensor.In(g, mutable=True) for g in generators), *inputs],
                [*graphs, *(updates[g] for g in generators)],
                mode=_INTERPRETED,
                on_unused_input="ignore",
                trust_input=True,
            )

    def generators(self, rng: np.random.Generator) -> list[np.random.Generator]:
        """What a chain of draws takes its random numbers from."""
        return rng.spawn(max(self._n_generators, 1))

    def __call__(
        self, generators: list[np.random.Generator], arguments: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        """Draw once. The list may hold other generators afterwards."""
        if self._standard:
            (rng,) = generators
            standard = (getattr(rng, kind)(shape) for kind, shape in self._standard)
            return self._function(*standard, *arguments)
        results = self._function(*generators, *arguments)
        generators[:] = results[self._n_outputs :]
        return results[: self._n_outputs]


def _standardized(graphs: Sequence[Variable]) -> tuple[list[Variable], dict[Variable, str]]:
    """Graphs in which random variables are functions of standard draws, where that is known.

    Also returned is what draws each of these new inputs.
    """
    new: dict[Variable, Variable] = {}
    drawn: dict[Variable, str] = {}
    for node in toposort(graphs):
        inputs = [new.get(v, v) for v in node.inputs]
        if type(node.op) in _STANDARD and None not in node.outputs[1].type.shape:
            draw = node.outputs[1]
            kind, function = _STANDARD[type(node.op)]
            standard = pt.tensor(dtype="float64", shape=draw.type.shape)
            drawn[standard] = kind
            parameters = (new.get(v, v) for v in node.op.dist_params(node))
            new[draw] = function(standard, *parameters).astype(draw.dtype)
        elif any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            new.update(zip(node.outputs, node.op.make_node(*inputs).outputs, strict=True))
    return [new.get(graph, graph) for graph in graphs], drawn
