"""What PyMC does not tell a step, and how a private step finds it out, by version of PyMC.

================================  =======================================  =====================
A private step must know          PyMC 5.28                                PyMC 6
================================  =======================================  =====================
that a chain begins               ``set_rng(rng)``                         ``setup_chain(...)``
how many tuning draws it has      in the frames of ``pm.sample`` only      ``setup_chain(tune=)``
that tuning is over               ``stop_tuning()``                        the same
how many chains will run          ``_progressbar_config(n_chains)`` only   the same
that no callback ends the chain   calls after the budget is used up        the same
================================  =======================================  =====================

PyMC may use one step object for several chains, one after the other, or copy it to worker processes:
a chain begins anew with each call of ``set_rng`` or ``setup_chain``, and a copy claims for itself.
How the callback ends a run and cuts the traces is in :mod:`pymc_dp.privacy.budget.draws`.
"""

from __future__ import annotations

import inspect

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from pymc.step_methods.compound import BlockedStep, StepMethodState
from rich.progress import TextColumn
from rich.table import Column

from pymc_dp.display import Shown

#: Number of calls after the budget is used up from which we assume that no callback is installed.
#: PyMC runs up to two steps ahead of its callback, but a chain in a worker process idles until the
#: other chains end.
CALLS_WITHOUT_CALLBACK = 1000

_COLUMNS = {"acceptance_rate": ("Accept", "0.2f"), "epsilon_spent": ("Epsilon", "0.3f")}


def number_of_tuning_draws() -> int:
    """Number of tuning draws of the chain that begins, read from PyMC 5's stack frames; 0 if they do not show it."""
    frame = inspect.currentframe()
    while frame is not None:
        known = frame.f_locals
        if frame.f_globals.get("__name__") in ("pymc.sampling.mcmc", "pymc.sampling.parallel"):
            return int(known.get("tune", getattr(known.get("self"), "_tune", 0)))
        frame = frame.f_back
    return 0


class PyMCStep(Shown, BlockedStep):
    """Adapter to PyMC's step interface: the calls under names that do not depend on its version."""

    default_blocked = True
    default_tune_steps = 0
    _state_class = StepMethodState

    @abstractmethod
    def begin_chain(self, rng: Any, tune: int) -> None:
        """Forget the previous chain; the new one begins with ``tune`` draws that PyMC discards."""

    @abstractmethod
    def expect_chains(self, n_chains: int) -> None:
        """Check the number of chains, before the first one begins."""

    def set_rng(self, rng: Any) -> None:
        """Start a chain (PyMC 5)."""
        self.begin_chain(rng, number_of_tuning_draws())

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain (PyMC 6)."""
        self.begin_chain(rng, tune)

    def stop_tuning(self) -> None:
        """Mark the end of tuning; PyMC calls this first if there is none."""
        self._tuning = False

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list, dict[str, list[float]]]:
        self.expect_chains(n_chains)
        columns = [
            TextColumn(f"{{task.fields[{name}]:{digits}}}", table_column=Column(title, ratio=1))
            for name, (title, digits) in _COLUMNS.items()
        ]
        return columns, {name: [0.0] * n_chains for name in _COLUMNS}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Callable, ...]:
        return (lambda stats: {name: stats[name] for name in _COLUMNS},)
