"""Differentially private Bayesian inference by MCMC, for any PyMC model.

The names here are those of most programs. Further ones are in :mod:`pymc_dp.planning`,
:mod:`pymc_dp.scores`, :mod:`pymc_dp.queries`, :mod:`pymc_dp.checks`, :mod:`pymc_dp.comparison`,
:mod:`pymc_dp.privatized`, :mod:`pymc_dp.sites`, :mod:`pymc_dp.steps`, :mod:`pymc_dp.privacy`, :mod:`pymc_dp.model`,
:mod:`pymc_dp.plots` and :mod:`pymc_dp.errors`.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from pymc_dp.public_names import *  # noqa: F403

__version__ = _version("pymc-dp")


def __getattr__(name: str) -> _Any:
    """Import the public names at first use: ``pymc-dp-ledger`` needs neither PyMC nor SciPy."""
    if name != "__all__" and name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = vars(_import_module("pymc_dp.public_names"))
    if (
        name not in public and name not in globals()
    ):  # its import makes modules attributes of the package
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return public.get(name, globals().get(name))


def __dir__() -> list[str]:
    return sorted([*globals(), *vars(_import_module("pymc_dp.public_names"))])
