"""The figure of docs/benchmarks.md, and the numbers below it."""

from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments" / "overview_figure.py"
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()


def test_the_page_has_the_stored_figures(experiments):
    found = experiments.stored()
    assert experiments.caption(found) in " ".join(PAGE.split())
    assert f"(_static/{experiments.PICTURE.name})" in PAGE


def test_the_picture_was_drawn_from_what_is_stored(experiments):
    image = pytest.importorskip("PIL.Image")
    with image.open(experiments.PICTURE) as picture:
        assert picture.info["Comment"] == experiments.digest(experiments.stored())


def test_more_records_and_more_budget_give_narrower_posteriors(experiments, stored):
    columns = [stored[f"{epsilon:g}"] for epsilon in experiments.EPSILONS]
    for column in columns:
        assert len(column) == len(experiments.SIZES)
        assert column == sorted(column, reverse=True) and column[-1] >= 1
    assert all(more < less for less, more in pairwise(columns))
