"""What is published with a version: its number and date in each place, and the README as PyPI shows it."""

import re
import tomllib

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HATCH = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
PLACES = ("https://github.com/pymc-dp/pymc-dp/blob/main/", "https://raw.githubusercontent.com/pymc-dp/pymc-dp/main/")  # fmt: skip


def test_the_version_is_the_same_everywhere():
    """An archive has no tags: its version is that of the latest release."""
    changes, citation = ((ROOT / f).read_text() for f in ("CHANGELOG.md", "CITATION.cff"))
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)
    headings = re.findall(r"^## .*$", changes, re.MULTILINE)
    assert headings == ["## [Unreleased]", *(f"## [{v}] - {date}" for v, date in releases)]
    version, date = releases[0]
    assert HATCH["version"]["raw-options"]["fallback_version"] == version
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation
    assert f"\n[{version}]: https://github.com/pymc-dp/pymc-dp/releases/tag/v{version}\n" in changes
    assert f"\n[Unreleased]: https://github.com/pymc-dp/pymc-dp/compare/v{version}...HEAD\n" in changes  # fmt: skip


def relative(text):
    """Targets of links that lead to files beside the page."""
    return [x for x in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match("https:|#", x)]


def test_links_of_the_readme_lead_to_the_repository():
    """PyPI has the page only; .ci/run tests that what is built has the replaced links."""
    text = (ROOT / "README.md").read_text()
    before = relative(text)
    assert len(before) > 5
    for each in HATCH["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    assert relative(text) == []
    links = {x for x in re.findall(r"\]\((https:[^)\s]+)\)", text) if x.startswith(PLACES)}
    files = {x.removeprefix(PLACES[0]).removeprefix(PLACES[1]) for x in links}
    assert files == set(before)
    images = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert images and all(x.startswith(PLACES[1]) for x in images)
