"""Simulators that are kept with their model, so that a second call on the same model compiles nothing."""

from __future__ import annotations

import threading

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import pymc as pm
import pytensor

from pytensor.graph.traversal import ancestors

from pymc_dp.host_arguments import as_model
from pymc_dp.model.data_keys import new_digest
from pymc_dp.model.graphs.data_variables import is_array_root, observed_values, stored
from pymc_dp.planning.simulator import Simulator

_NAME = "_pymc_dp_simulator"
#: Bytes of a model's arrays above which its simulator is not kept, as it holds them a second time.
_MOST_BYTES = 2**27
#: Arguments that may be given for a simulator to be kept; arrays among the others could be changed in place.
_PLAIN = {"covariates", "n_records", "temperature"}


class _Kept:
    """A simulator and everything it was compiled from; copies of the model, pickled or not, get an empty one."""

    def __init__(self, simulator: Simulator | None = None, parts: tuple[Any, ...] = ()) -> None:
        self.simulator, self._parts = simulator, parts

    def __reduce__(self) -> Any:
        return _Kept, ()

    def is_of(self, model: pm.Model, parts: tuple[Any, ...]) -> bool:
        """Whether nothing has changed since this model was compiled: objects are identical, texts and numbers equal."""
        if self.simulator is None or self.simulator.model is not model:
            return False
        same = (a is b or (type(a) is type(b) in (str, bytes, int, float) and a == b)
                for a, b in zip(self._parts, parts, strict=False))  # fmt: skip
        return len(self._parts) == len(parts) and all(same)


def simulator_of(model: pm.Model | None, **options: Any) -> Simulator:
    """The simulator that is kept with this model, or a new one if anything that it was compiled from has changed.

    It is kept until the model is deleted or another one is made; not if the model's data take more than 128 MB, if
    records are read in blocks, or with privacy units or public arrays.
    """
    given = {
        n: x for n, x in options.items() if not (x is None or (isinstance(x, tuple) and not x))
    }
    if not given.keys() <= _PLAIN or not (model is None or isinstance(model, pm.Model)):
        return Simulator(model, **options)
    model = as_model(model)
    covariates = given.get("covariates")
    models = [model, covariates] if isinstance(covariates, pm.Model) else [model]
    roots = [_roots(each) for each in models]
    if sum(stored(root).nbytes for of_one in roots for root in of_one) > _MOST_BYTES:
        return Simulator(model, **options)
    parts = tuple(chain(_settings(given), *map(_parts, models, roots)))
    kept = vars(model).get(_NAME)
    if not (isinstance(kept, _Kept) and kept.is_of(model, parts)):
        vars(model)[_NAME] = kept = _Kept(Simulator(model, **options), parts)
    return kept.simulator  # type: ignore[return-value]


def _settings(given: Mapping[str, Any]) -> Iterator[Any]:
    """Thread, compilation settings of PyTensor, and arguments."""
    yield threading.get_ident()
    for name in ("mode", "floatX", "linker", "optimizer"):
        yield str(getattr(pytensor.config, name))
    for name in sorted(_PLAIN):
        yield given.get(name)


def _parts(model: pm.Model, roots: list[Any]) -> Iterator[Any]:
    """Variables of a model and their values, transforms and initial values; each array with its keyed hash."""
    yield from (*model.basic_RVs, *model.potentials, *model.deterministics, *model.data_vars)
    for of_variable in (model.rvs_to_values, model.rvs_to_transforms, model.rvs_to_initial_values):
        yield from of_variable.values()
    for root in roots:
        array = stored(root)
        digest = new_digest(f"{array.dtype.str}{array.shape}")
        digest.update(array.tobytes())
        yield from (root, array, digest.digest())


def _roots(model: pm.Model) -> list[Any]:
    """Arrays that a model depends on, also through shapes only, and all ``pm.Data``, which ``pm.set_data`` replaces."""
    variables = [*model.basic_RVs, *model.potentials, *observed_values(model), *model.data_vars]
    return [v for v in dict.fromkeys(ancestors(variables)) if is_array_root(v)]
