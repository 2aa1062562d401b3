"""The layout of the package: sizes and names of its files. Imports are contracts in pyproject.toml."""

import ast

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    folder: sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*.py"))
    for folder in ("pymc_dp", "tests")
}
MAX_LINES = {"pymc_dp": 400, "tests": 700}
#: Lines of all files; of the package its files and levels of imports, too. A change may lower these, and not raise them.
MOST = {"pymc_dp": 29_750, "tests": 35_260, "experiments": 5_250}
MOST_FILES, MOST_LEVELS = 162, 26


#: Python and pytest look for these names in each folder.
FIXED_NAMES = ("__init__.py", "conftest.py")


@pytest.mark.parametrize("folder", FILES)
def test_no_file_is_too_long(folder):
    lengths = {f: len((ROOT / f).read_text(encoding="utf-8").splitlines()) for f in FILES[folder]}
    assert lengths
    assert {f: n for f, n in lengths.items() if n >= MAX_LINES[folder]} == {}


@pytest.mark.parametrize("folder", FILES)
def test_no_base_name_occurs_twice(folder):
    names = Counter(Path(f).name for f in FILES[folder] if Path(f).name not in FIXED_NAMES)
    assert {name for name, n in names.items() if n > 1} == set()


@pytest.mark.parametrize("folder", MOST)
def test_there_are_not_more_lines(folder):
    files = (ROOT / folder).rglob("*.py")
    assert sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files) <= MOST[folder]


def test_there_are_not_more_files_nor_levels():
    """The level of a file is one more than the highest of those that it imports from the package."""
    files = {f.removesuffix(".py").removesuffix("/__init__").replace("/", "."): f for f in FILES["pymc_dp"]}  # fmt: skip

    def imported(name):
        for node in ast.walk(ast.parse((ROOT / files[name]).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in files:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in files else node.module

    @cache
    def level(name):
        return 1 + max((level(x) for x in set(imported(name)) - {name, "pymc_dp"}), default=0)

    assert len(files) <= MOST_FILES and max(map(level, files)) <= MOST_LEVELS


def test_nothing_is_named_utils():
    assert not [f for files in FILES.values() for f in files if "utils" in Path(f).stem]
