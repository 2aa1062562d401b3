"""Compiled functions that draw random variables from generators that the caller passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr

from pymc.distributions.continuous import WeibullBetaRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.logprob.abstract import _icdf
from pymc.pytensorf import collect_default_updates, find_rng_nodes
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors
from pytensor.link.vm import VMLinker
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.op import RandomVariable
from scipy.special import ndtri

from pymc_dp.model.graphs.compiling import NumbaFunction, freeze, with_constants
from pymc_dp.model.graphs.data_variables import is_array_root, rebuilt, stored

FEW = (
    30  # up to this number of categories, one comparison for each is written out: it compiles fast
)


def _category(u: Variable, p: Variable) -> Variable:
    """Inverse of the cumulative probabilities: number of them, without the last, that are at most `u`."""
    n = p.type.shape[-1]
    if n is None or n > FEW:
        return (u[..., None] >= pt.cumsum(p, -1)[..., :-1]).sum(-1)
    below = [sum(p[..., i] for i in range(k + 1)) for k in range(n - 1)]
    return sum((u >= c).astype("int64") for c in below) if below else pt.zeros_like(u)


# A NumPy method that draws without parameters, and the function of its draw and of the parameters.
_STANDARD: dict[type, tuple[str, Callable[..., Variable]]] = {
    ptr.NormalRV: ("standard_normal", lambda z, mu, sigma: mu + sigma * z),
    ptr.HalfNormalRV: ("standard_normal", lambda z, mu, sigma: mu + sigma * pt.abs(z)),
    ptr.LogNormalRV: ("standard_normal", lambda z, mu, sigma: pt.exp(mu + sigma * z)),
    ptr.ExponentialRV: ("standard_exponential", lambda e, scale: scale * e),
    ptr.UniformRV: ("random", lambda u, low, high: low + (high - low) * u),
    ptr.LaplaceRV: (
        "random",
        lambda u, mu, b: mu - b * pt.sign(u - 0.5) * pt.log1p(-2 * pt.abs(u - 0.5)),
    ),
    ptr.LogisticRV: ("random", lambda u, mu, s: mu + s * pt.log(u / (1 - u))),
    ptr.GumbelRV: ("standard_exponential", lambda e, mu, beta: mu - beta * pt.log(e)),
    WeibullBetaRV: ("standard_exponential", lambda e, alpha, beta: beta * e ** (1 / alpha)),
    ptr.BernoulliRV: ("random", lambda u, p: u < p),
    ptr.CategoricalRV: ("random", _category),
}

#: Quantiles of what these methods draw.
_QUANTILES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "random": lambda u: u, "standard_normal": ndtri, "standard_exponential": lambda u: -np.log1p(-u)
}  # fmt: skip

# For all others NumPy draws, node by node. In Numba, PyTensor 2.38 draws Cauchy variables with
# location and scale exchanged. Sums and products of more than two arguments would be computed element by element.
_INTERPRETED = Mode(
    VMLinker(use_cloop=False, c_thunks=False),
    RewriteDatabaseQuery(
        include=["canonicalize", "random_make_inplace"],
        exclude=["local_add_canonizer", "local_mul_canonizer"],
    ),
)


class Drawing:
    """A function that draws the random variables in graphs; the states of their own generators do not change."""

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self._n_outputs = len(outputs)
        graphs, drawn, is_fast = _standardized(with_constants(outputs))
        moves = bool(drawn) and not find_rng_nodes(graphs)
        #: Names of methods of a generator, and shapes.
        self._standard = [(kind, v.type.shape) for v, kind in drawn.items() if moves]
        #: Whether ordinary draws, too, are functions of standard ones.
        self._is_fast = moves and is_fast
        self._n_generators = 0
        if moves:
            self._of: Callable = NumbaFunction([*drawn, *inputs], freeze(graphs))
        if not self._is_fast:
            # Other variables with the same arrays: the model may get others, by pm.set_data.
            arrays = [
                v for v in ancestors(outputs) if isinstance(v, SharedVariable) and is_array_root(v)
            ]
            own = {v: pytensor.shared(stored(v), shape=v.type.shape, borrow=True) for v in arrays}
            outputs = graph_replace(outputs, own, strict=False)
            shared = find_rng_nodes(outputs)
            generators = [pt.random.type.random_generator_type() for _ in shared]
            self._n_generators = len(generators)
            graphs = graph_replace(outputs, dict(zip(shared, generators, strict=True)))
            updates = collect_default_updates(graphs, inputs=generators, must_be_shared=False)
            self._function: Callable = pytensor.function(
                [*(pytensor.In(g, mutable=True) for g in generators), *inputs],
                [*graphs, *(updates[g] for g in generators)],
                mode=_INTERPRETED,
                on_unused_input="ignore",
                trust_input=True,
            )

    def numbers(self, n: int, rng: np.random.Generator) -> list[list[np.ndarray]] | None:
        """Numbers for `n` draws, stratified over these for each element; None unless all draws are functions of such numbers."""
        if not self._standard:
            return None
        stratified = []
        for kind, shape in self._standard:
            strata = np.argsort(rng.random((n, *shape)), axis=0)
            stratified.append(_QUANTILES[kind]((strata + rng.random((n, *shape))) / n))
        return [[array[k] for array in stratified] for k in range(n)]

    def of(
        self, numbers: Sequence[np.ndarray], arguments: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        """The draw that these numbers give."""
        return self._of(*numbers, *arguments)

    def generators(self, rng: np.random.Generator) -> list[np.random.Generator]:
        """Generators for a sequence of draws."""
        return rng.spawn(max(self._n_generators, 1))

    def __call__(
        self, generators: list[np.random.Generator], arguments: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        """Draw once; may replace the generators in the list."""
        if self._is_fast:
            (rng,) = generators
            standard = (getattr(rng, kind)(shape) for kind, shape in self._standard)
            return self.of([*standard], arguments)
        results = self._function(*generators, *arguments)
        generators[:] = results[self._n_outputs :]
        return results[: self._n_outputs]


def _standardized(graphs: Sequence[Variable]) -> tuple[list[Variable], dict[Variable, str], bool]:
    """Graphs with random variables as functions of standard draws; NumPy's method for each new input; whether `_STANDARD` has all.

    Other continuous laws are PyMC's quantile functions of uniform numbers: often ten times as slow as NumPy's draw.
    """
    drawn: dict[Variable, str] = {}

    def standard(node: Apply, inputs: list[Variable]) -> Sequence[Variable] | None:
        is_random = isinstance(node.op, RandomVariable | SymbolicRandomVariable)
        if not is_random or len(node.outputs) != 2 or None in node.outputs[1].type.shape:
            return None
        state, draw = node.outputs
        variable = pt.tensor(dtype="float64", shape=draw.type.shape)
        kind, function = _STANDARD.get(type(node.op), ("random", None))
        if function is not None:
            parameters = [new.get(v, v) for v in node.op.dist_params(node)]
            value = function(variable, *parameters)
        elif draw.dtype[0] != "f":
            return None
        else:
            try:
                value = _icdf(node.op, variable, *inputs)
            except NotImplementedError:
                return None
            # Checks of parameters raise, where a draw without density is wanted.
            (value,) = rebuilt([value], {}, lambda n, new: new[:1] if isinstance(n.op, CheckAndRaise) else None)  # fmt: skip
        drawn[variable] = kind
        is_fast.append(function is not None)
        return [state, value.astype(draw.dtype)]

    new: dict[Variable, Variable] = {}
    is_fast: list[bool] = []
    return rebuilt(graphs, new, standard), drawn, all(is_fast)
