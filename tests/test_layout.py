"""The layout of the package: sizes and names of its files. Imports are contracts in pyproject.toml."""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    folder: sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*.py"))
    for folder in ("pymc_dp", "tests")
}
MAX_LINES = {"pymc_dp": 400, "tests": 700}


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


def test_nothing_is_named_utils():
    assert not [f for files in FILES.values() for f in files if "utils" in Path(f).stem]
