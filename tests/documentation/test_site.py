"""The site: every page is in one section, every notebook in the gallery, with a picture and tags."""

import importlib.util
import json
import re

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def entries(page):
    """Pages in the tables of contents of a page."""
    text = (DOCS / f"{page}.md").read_text()
    found = []
    for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
        lines = [x for x in block.splitlines() if x and not x.startswith(":")]
        found += [re.sub(r".*<(.*)>", r"\1", x) for x in lines]
    return found


@pytest.fixture(scope="module")
def extension():
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("site_notebooks", DOCS / "_ext" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_one_section():
    sections = entries("index")
    assert 5 <= len(sections) <= 6  # more do not fit into the bar
    found = Counter(page for section in sections for page in entries(section))
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index", *sections}
    assert found == Counter(pages | {f"examples/{path.stem}" for path in NOTEBOOKS})


def test_every_section_names_its_pages():
    for section in entries("index"):
        text = re.sub(r"```\{toctree\}.*?```", "", (DOCS / f"{section}.md").read_text(), flags=re.S)
        for page in entries(section):
            name = page.removeprefix("examples/")
            assert f"({page}" in text or re.search(rf"^{name}: \w", text, re.MULTILINE), page


def test_every_notebook_is_in_the_gallery():
    blocks = re.findall(r"```\{notebooks\}\n(.*?)```", (DOCS / "gallery.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert sorted(line.partition(": ")[0] for line in lines) == [path.stem for path in NOTEBOOKS]
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cards_have_pictures_and_tags(extension, path):
    notebook = json.loads(path.read_text())
    assert extension.thumbnail(notebook).startswith(b"\x89PNG")
    tags = extension.tags(notebook)
    assert tags and all(isinstance(tag, str) and tag for tag in tags)
    assert notebook["metadata"]["pymc_dp"]["authors"]
    assert extension.title(notebook)[0].isupper()


def test_the_picture_of_a_card_can_be_chosen(extension):
    def cell(number, **metadata):
        return {"metadata": metadata, "outputs": [{"data": {"image/png": f"AAA{number}"}}]}

    cells = [{"metadata": {}, "source": ["# Title"]}, cell(0), cell(4, tags=["thumbnail"])]
    assert extension.thumbnail({"cells": cells[:2]}) == b"\0\0\x34"
    assert extension.thumbnail({"cells": cells}) == b"\0\0\x38"
    with pytest.raises(ValueError, match="'Title' has no picture"):
        extension.thumbnail({"cells": cells[:1]})


def code(text):
    """Lines of code blocks."""
    blocks = re.findall(r"^```(.*?)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [line for kind, block in blocks if "{" not in kind for line in block.splitlines()]


def test_code_fits_into_its_column():
    """The style sheet leaves room for 88 columns."""
    lines = [(page.name, x) for page in DOCS.glob("*.md") for x in code(page.read_text())]
    assert len(lines) > 300
    assert [x for x in lines if len(x[1]) > 88] == []


def test_inventories_have_what_pages_link():
    """A role without a target would be text without a link, and no warning."""
    known = set()
    for path in sorted((DOCS / "inventories").glob("*.inv")):
        first, _, _, *lines = path.read_text().splitlines()
        assert first == "# Sphinx inventory version 1"  # is text
        assert all(len(line.split()) == 3 for line in lines)
        known |= {line.split()[0] for line in lines}
    pages = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    linked = set(re.findall(r"\{\w+\}`[^`<]*<((?:pymc|arviz|numpy)\.[\w.]+)>`", pages))
    assert len(linked) > 5 and linked <= known
