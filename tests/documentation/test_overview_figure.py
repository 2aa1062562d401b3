"""The figure of docs/benchmarks.md, and the numbers below it."""

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
