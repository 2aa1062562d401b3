"""Scripts of experiments as modules, which import each other."""

import importlib
import sys

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture(scope="session")
def script():
    """Import a script by its name; those of peers have their folder before it."""
    paths = [str(FOLDER), str(FOLDER / "peers")]
    sys.path[:0] = paths
    yield lambda name: importlib.import_module(name.split("/")[-1])
    for path in paths:
        sys.path.remove(path)
