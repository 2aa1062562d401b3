"""Imports run one way: the files are parsed and every import is held against the layers.

``errors, acceptance, correction <- privacy, model <- steps <- sampling, tuning, release, diagnostics``; privacy and model never meet.
Imports inside functions count, and so do ``importlib.import_module("...")`` and ``__import__("...")``; imports under
``if TYPE_CHECKING:`` do not, as they only name types.
"""

from __future__ import annotations

import ast

from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "pymc_dp"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE
MAX_LINES = 400

TOP = {
    "sampling",
    "tuning",
    "blind_plans",
    "path_plans",
    "sghmc_plans",
    "normal_chains",
    "pilot",
    "plan_plots",
    "release",
    "containers",
    "diagnostics",
    "starting",
    "newton",
    "preparation",
    "costs",
    "remainders",
    "surrogate_plans",
    "surrogates",
}
# What each layer may import from the package. "door" is pymc_dp/__init__.py, which imports them all.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "acceptance": {"errors"},
    "correction": {"errors", "acceptance"},
    "distributions": set(),
    "privacy": {"errors", "acceptance", "privacy"},
    "model": {"errors", "acceptance", "model"},
    "steps": {"errors", "acceptance", "correction", "privacy", "model", "steps"},
    **{
        name: {"errors", "acceptance", "correction", "privacy", "model", "steps", *TOP}
        for name in TOP
    },
}
MAY_IMPORT["door"] = set(MAY_IMPORT)

# Where a library may be imported: folders end in "/".
HOST_FILES = (
    "model/",
    "steps/base.py",
    "steps/augmentation.py",
    "distributions.py",
    "sampling.py",
    "preparation.py",
    "starting.py",
    "surrogate_plans.py",
    "surrogates.py",
    "tuning.py",
    "release.py",
)
ONLY_IN = {
    "pymc": HOST_FILES,
    "pytensor": HOST_FILES,
    "dp_accounting": ("privacy/pld.py",),
}
NEVER_IN = {
    "privacy/": {"pymc", "pytensor", "arviz", "arviz_base", "arviz_plots", "arviz_stats"},
}


def layer_of_file(path: str) -> str | None:
    """Name the layer of a file, given relative to the package; None for a file that has none."""
    first, *rest = Path(path).parts
    name = first if rest else Path(first).stem
    if name == "__init__":
        return "door"
    folders = {"privacy", "model", "steps"}
    return name if name in MAY_IMPORT and (name in folders) == bool(rest) else None


def layer_of_target(module: str) -> str:
    """Name the layer of an absolute module name in the package; its door if it names none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "door"


def is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without the bodies of ``if TYPE_CHECKING:``."""
    yield node
    skipped = node.body if isinstance(node, ast.If) and is_type_checking(node.test) else []
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from runtime_nodes(child)


def absolute(path: str, level: int, module: str) -> str:
    """Absolute name of a relative import made in a file of the package."""
    if not level:
        return module
    package = [PACKAGE, *Path(path).parts[:-1]]
    return ".".join([*package[: len(package) - level + 1], *([module] if module else [])])


def dynamic_target(path: str, call: ast.Call) -> str | None:
    """What ``import_module`` or ``__import__`` loads; "" if only running the program would tell."""
    called = (
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    )
    if called not in ("import_module", "__import__"):
        return None
    arguments = [*call.args, *(k.value for k in call.keywords if k.arg == "name")]
    target = arguments[0] if arguments else None
    if not isinstance(target, ast.Constant) or not isinstance(target.value, str):
        return ""
    name = target.value.lstrip(".")
    return absolute(path, len(target.value) - len(name), name)


def imports(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a file imports; "" where the name is computed."""
    for node in runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, node.level, node.module or "")
            if module == PACKAGE:  # from pymc_dp import errors: a module, or a name of the door
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module
        elif isinstance(node, ast.Call):
            target = dynamic_target(path, node)
            if target is not None:
                yield node.lineno, target


def is_under(path: str, places: tuple[str, ...]) -> bool:
    return any(path.startswith(p) if p.endswith("/") else path == p for p in places)


def violations(path: str, source: str) -> list[str]:
    """What a file, given relative to the package, does against the layers."""
    found = []
    layer = layer_of_file(path)
    if "utils" in Path(path).with_suffix("").parts:
        found.append(f"{path}: no utils: name the file after the question it answers")
    elif layer is None:
        found.append(f"{path}: in no layer; give it one here")
    if (n_lines := len(source.splitlines())) >= MAX_LINES:
        found.append(f"{path}: {n_lines} lines, must stay below {MAX_LINES}")
    for line, module in imports(path, source):
        root = module.partition(".")[0]
        if not module:
            if layer != "door":
                found.append(f"{path}:{line}: imports a computed name, which nobody can check")
        elif root == PACKAGE:
            target = layer_of_target(module)
            if module == f"{PACKAGE}.__version__":
                continue  # a string, set before the door imports anything
            if layer is not None and target not in MAY_IMPORT[layer]:
                found.append(f"{path}:{line}: {layer} imports {module} ({target})")
        elif root in ONLY_IN and not is_under(path, ONLY_IN[root]):
            found.append(f"{path}:{line}: {root} belongs in {', '.join(ONLY_IN[root])}")
        else:
            found.extend(
                f"{path}:{line}: {place} never imports {root}"
                for place, banned in NEVER_IN.items()
                if is_under(path, (place,)) and root in banned
            )
    return found


FILES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py"))


def test_the_package_is_found():
    assert "__init__.py" in FILES
    assert {"privacy", "model", "steps"} <= {Path(f).parts[0] for f in FILES}


@pytest.mark.parametrize("path", FILES)
def test_layers(path):
    found = violations(path, (ROOT / path).read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


PLANTED = {
    # path, source, what is reported
    "privacy imports pymc": ("privacy/budget.py", "import pymc as pm", "pymc belongs in"),
    "privacy imports pytensor": (
        "privacy/noise.py",
        "import pytensor.tensor as pt",
        "pytensor belongs in",
    ),
    "privacy imports arviz": ("privacy/report.py", "import arviz as az", "never imports arviz"),
    "privacy imports a part of arviz 1": (
        "privacy/report.py",
        "from arviz_base import convert_to_datatree",
        "never imports arviz_base",
    ),
    "privacy imports model": (
        "privacy/budget.py",
        "from pymc_dp.model.records import RecordLikelihood",
        "privacy imports pymc_dp.model.records (model)",
    ),
    "privacy imports model, relatively": (
        "privacy/budget.py",
        "from ..model.records import RecordLikelihood",
        "privacy imports pymc_dp.model.records (model)",
    ),
    "privacy imports model, by its folder's name": (
        "privacy/budget.py",
        "from .. import errors, model",
        "privacy imports pymc_dp.model (model)",
    ),
    "privacy imports steps": (
        "privacy/ledger.py",
        "import pymc_dp.steps.base",
        "privacy imports pymc_dp.steps.base (steps)",
    ),
    "privacy imports release": (
        "privacy/ledger.py",
        "from pymc_dp.release import release",
        "(release)",
    ),
    "privacy imports through the door": (
        "privacy/accounting.py",
        "from pymc_dp import RecordLikelihood",
        "privacy imports pymc_dp.RecordLikelihood (door)",
    ),
    "privacy imports the door": ("privacy/accounting.py", "import pymc_dp", "(door)"),
    "privacy imports everything": ("privacy/accounting.py", "from pymc_dp import *", "(door)"),
    "the folder's own file counts": ("privacy/__init__.py", "from .. import model", "(model)"),
    "model imports privacy": (
        "model/records.py",
        "from pymc_dp.privacy.noise import decide",
        "model imports pymc_dp.privacy.noise (privacy)",
    ),
    "model imports steps": ("model/records.py", "from ..steps import base", "(steps)"),
    "pymc in a step": ("steps/penalty.py", "import pymc", "pymc belongs in"),
    "pytensor in diagnostics": (
        "diagnostics.py",
        "from pytensor import function",
        "pytensor belongs in",
    ),
    "pymc in the door": ("__init__.py", "import pymc", "pymc belongs in"),
    "dp_accounting in another file": (
        "privacy/mechanisms.py",
        "from dp_accounting.pld import privacy_loss_distribution",
        "dp_accounting belongs in privacy/pld.py",
    ),
    "dp_accounting in a step": ("steps/sghmc.py", "import dp_accounting", "dp_accounting belongs"),
    "acceptance imports privacy": (
        "acceptance.py",
        "from pymc_dp.privacy.noise import decide",
        "acceptance imports pymc_dp.privacy.noise (privacy)",
    ),
    "errors imports acceptance": ("errors.py", "from .acceptance import Barker", "(acceptance)"),
    "steps import sampling": (
        "steps/base.py",
        "from pymc_dp.sampling import sample",
        "steps imports pymc_dp.sampling (sampling)",
    ),
    "inside a function": (
        "privacy/budget.py",
        "def f():\n    import pymc\n    return pymc",
        "privacy/budget.py:2: pymc belongs in",
    ),
    "inside try": (
        "privacy/accounting.py",
        "try:\n    import arviz\nexcept ImportError:\n    arviz = None",
        "never imports arviz",
    ),
    "in the else of TYPE_CHECKING": (
        "privacy/budget.py",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import pymc",
        "pymc belongs in",
    ),
    "under the opposite of TYPE_CHECKING": (
        "privacy/budget.py",
        "if not TYPE_CHECKING:\n    import pymc",
        "pymc belongs in",
    ),
    "by import_module": (
        "privacy/budget.py",
        "import importlib\nimportlib.import_module('pymc.sampling')",
        "pymc belongs in",
    ),
    "by import_module, relatively": (
        "privacy/budget.py",
        "from importlib import import_module\nimport_module('..model', __package__)",
        "privacy imports pymc_dp.model (model)",
    ),
    "by import_module, with a keyword": (
        "privacy/budget.py",
        "import importlib\nimportlib.import_module(name='pymc')",
        "pymc belongs in",
    ),
    "by __import__": ("privacy/budget.py", "__import__('pytensor')", "pytensor belongs in"),
    "by a computed name": (
        "privacy/budget.py",
        "import importlib\nimportlib.import_module('py' + 'mc')",
        "computed name",
    ),
    "400 lines": ("privacy/budget.py", "\n" * MAX_LINES, "400 lines, must stay below 400"),
    "utils.py": ("privacy/utils.py", "", "no utils"),
    "a folder utils": ("utils/arrays.py", "", "no utils"),
    "a file in no layer": ("helpers.py", "", "in no layer"),
    "a folder in no layer": ("plots/energy.py", "", "in no layer"),
    "a folder named like a file": ("errors/budget.py", "", "in no layer"),
}

ALLOWED = {
    "the order, downwards": (
        "sampling.py",
        "import pymc as pm\nfrom pymc_dp.release import release\nfrom pymc_dp.steps.base import DPStep\n"
        "from pymc_dp.privacy import budget\nfrom .model.checks import check_model\nfrom . import errors",
    ),
    "a step": (
        "steps/penalty.py",
        "import numpy as np\nfrom pymc_dp.acceptance import Penalty\nfrom .base import DPStep\n"
        "from ..privacy.mechanisms import Decision\nfrom ..model.records import RecordLikelihood\n"
        "from pymc_dp import errors",
    ),
    "the adapter": ("steps/base.py", "from pymc.step_methods.compound import BlockedStep"),
    "the second host file": ("steps/augmentation.py", "import pytensor, pymc"),
    "the model": ("model/records.py", "import pymc, pytensor.tensor\nfrom . import checks"),
    "the accountant": ("privacy/pld.py", "def f():\n    import dp_accounting"),
    "neighbours in privacy": (
        "privacy/budget.py",
        "import scipy\nfrom pymc_dp import acceptance\nfrom .ledger import Ledger",
    ),
    "types only": (
        "privacy/budget.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pymc\n"
        "    from pymc_dp.model.records import RecordLikelihood",
    ),
    "types only, with the module's name": (
        "model/records.py",
        "import typing\nif typing.TYPE_CHECKING:\n    from pymc_dp.privacy.budget import PrivacyBudget",
    ),
    "the door, lazily": (
        "__init__.py",
        "import importlib\nfrom pymc_dp.release import release\nimportlib.import_module(f'{__name__}.x')",
    ),
    "the version": ("release.py", "def f():\n    from pymc_dp import __version__"),
    "names that only begin alike": ("privacy/budget.py", "import pymc_extras_of_mine, arvizard"),
    "399 lines": ("privacy/budget.py", "\n" * (MAX_LINES - 1)),
}


@pytest.mark.parametrize(("path", "source", "reported"), PLANTED.values(), ids=PLANTED)
def test_the_checker_catches(path, source, reported):
    found = violations(path, source)
    assert len(found) == 1, found
    assert reported in found[0]


@pytest.mark.parametrize(("path", "source"), ALLOWED.values(), ids=ALLOWED)
def test_the_checker_allows(path, source):
    assert violations(path, source) == []
