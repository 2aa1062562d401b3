"""PyMC's NUTS on a density that is no PyMC model, in coordinates in which it is about standard normal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pymc as pm

from pymc.step_methods.hmc.quadpotential import QuadPotentialDiagAdapt

#: Mean acceptance probability along trajectories that the step size is adapted to.
_TARGET_ACCEPT = 0.8
#: First variances count as much as so many draws.
_WEIGHT = 10

#: Value and gradient; the value is minus infinity where the density is zero.
LogDensity = Callable[[np.ndarray], tuple[float, np.ndarray]]


class _Compiled:
    """The attributes of a compiled density that ``pm.NUTS`` reads."""

    dtype = "float64"
    _raveled_inputs = True
    _extra_vars_shared: ClassVar[dict[str, Any]] = {}

    def __init__(self, log_density: LogDensity) -> None:
        self._pytensor_function = log_density


class Nuts:
    """NUTS moves; step size and mass matrix adapt until :meth:`stop_tuning`."""

    def __init__(
        self,
        log_density: LogDensity,
        mean: np.ndarray,
        root: np.ndarray,
        rng: np.random.Generator,
    ) -> None:
        self._mean, self._root = mean, root
        self._inverse = np.linalg.inv(root)

        def standardised(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = log_density(mean + root @ z)
            return value, root.T @ gradient

        n, (one, other) = len(mean), rng.spawn(2)
        potential = QuadPotentialDiagAdapt(
            n, np.zeros(n), np.ones(n), _WEIGHT, dtype="float64", rng=one, adaptation_window=101
        )
        with pm.Model(model=None) as model:  # also inside of another model
            pm.Flat("z", shape=n)
        self._nuts = pm.NUTS(
            model=model, logp_dlogp_func=_Compiled(standardised), potential=potential, step_scale=1.0,
            target_accept=_TARGET_ACCEPT, initial_point={"z": np.zeros(n)}, rng=other,
        )  # fmt: skip

    def move(self, position: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Next position, and NUTS's statistics under PyMC's names."""
        with np.errstate(all="ignore"):
            point, (stats,) = self._nuts.step({"z": self._inverse @ (position - self._mean)})
        return self._mean + self._root @ point["z"], {
            "acceptance_rate": stats["mean_tree_accept"],
            "diverging": stats["diverging"],
            "energy": stats["energy"],
            "lp": stats["model_logp"],
            "n_steps": stats["tree_size"],
            "reached_max_treedepth": stats["reached_max_treedepth"],
            "step_size": stats["step_size"],
            "tree_depth": stats["depth"],
        }

    def stop_tuning(self) -> None:
        """End the adaptation of step size and mass matrix."""
        self._nuts.stop_tuning()
