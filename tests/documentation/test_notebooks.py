"""Notebooks follow the rules by which the pages show them."""

import copy
import json
import re

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WATERMARK = "%load_ext watermark\n%watermark -n -u -v -iv -w -p pymc_dp,pymc,pytensor,arviz"
#: Code for CI and for the look of figures, which the pages show folded.
SCAFFOLDING = r"PYMC_DP_SMALL|if (not )?small\b|rcParams|warnings\.(filter|simplefilter)|logging\."
LOCAL_PATH = r"(?<![\w.])/(?:home|root|work|usr|var|tmp/ipykernel)[\w-]*/\S*"

NOTEBOOKS = {path.stem: json.loads(path.read_text()) for path in sorted(EXAMPLES.glob("*.ipynb"))}


def source(cell):
    return "".join(cell["source"])


def tags_of(cell):
    return cell["metadata"].get("tags", [])


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def described(notebook):
    """Tags and authors: in the metadata, which the gallery reads, and below the title."""
    about = notebook["metadata"].get("pymc_dp", {})
    tags, authors = about.get("tags", []), about.get("authors", [])
    if not (3 <= len(tags) <= 5 and tags == [tag.lower() for tag in tags] and authors):
        yield "metadata without 3 to 5 lower-case tags and authors"
    line = f"**Tags:** {', '.join(tags)} · **Authors:** {', '.join(authors)}"
    title, *below = source(notebook["cells"][0]).split("\n")
    if not title.startswith("# ") or below[:3] != ["", line, ""]:
        yield "the line below the title is not the metadata"


def images(cell):
    return [o for o in cell["outputs"] if "image/png" in o.get("data", {})]


def illustrated(notebook):
    """One figure for the gallery; posteriors are drawn by ArviZ."""
    shown = [cell for cell in code_cells(notebook) if "thumbnail" in tags_of(cell)]
    if len(shown) != 1 or not images(shown[0]):
        yield "not one cell with the tag thumbnail, with a figure"
    code = "\n".join(map(source, code_cells(notebook)))
    if re.search(r"\b(pm|dp)\.sample\(", code) and "az.plot_" not in code:
        yield "a posterior without a plot by ArviZ"


def readable(notebook):
    """Code fits the column of a page; what readers do not need is folded."""
    for cell in code_cells(notebook):
        if any(len(line) > 88 for line in source(cell).split("\n")):
            yield f"wider than 88 columns: {cell['id']}"
        hidden = {"hide-cell", "hide-input", "remove-cell", "remove-input"} & set(tags_of(cell))
        if re.search(SCAFFOLDING, source(cell)) and not hidden:
            yield f"scaffolding is not hidden: {cell['id']}"


def printed(output):
    """The text of an output, without figures."""
    shown = [text for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join("".join(text) for text in (output.get("text", ""), *shown))


def executed(notebook):
    """Outputs are those of one run from top to bottom; the last names the versions, none a folder."""
    cells = code_cells(notebook)
    if [cell["execution_count"] for cell in cells] != [*range(1, len(cells) + 1)]:
        yield "not executed in order"
    outputs = [output for cell in cells for output in cell["outputs"]]
    if any(output["output_type"] == "error" for output in outputs):
        yield "an output is an error"
    if folders := [x for o in outputs for x in re.findall(LOCAL_PATH, printed(o))]:
        yield f"an output has a local path: {folders[0]}"
    if source(notebook["cells"][-1]) != WATERMARK or "pymc_dp" not in json.dumps(
        notebook["cells"][-1]["outputs"]
    ):
        yield "no versions at the end"


RULES = (described, illustrated, readable, executed)


def faults(notebook):
    return [fault for rule in RULES for fault in rule(notebook)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_rules(name):
    assert faults(NOTEBOOKS[name]) == []


def thumbnail(notebook):
    return next(cell for cell in code_cells(notebook) if "thumbnail" in tags_of(cell))


def settings(notebook):
    return next(cell for cell in code_cells(notebook) if "PYMC_DP_SMALL" in source(cell))


# Each makes one fault.
DAMAGES = {
    "tags": lambda n: n["metadata"]["pymc_dp"].update(tags=["Only One"]),
    "authors": lambda n: n["metadata"]["pymc_dp"].update(authors=["Somebody else"]),
    "figure": lambda n: thumbnail(n).update(outputs=[]),
    "two thumbnails": lambda n: code_cells(n)[0]["metadata"].update(
        tags=["hide-cell", "thumbnail"]
    ),
    "not hidden": lambda n: settings(n)["metadata"].update(tags=[]),
    "wide": lambda n: settings(n)["source"].append("\n" + "#" * 89),
    "order": lambda n: code_cells(n)[1].update(execution_count=9),
    "error": lambda n: code_cells(n)[1].update(outputs=[{"output_type": "error"}]),
    "path": lambda n: code_cells(n)[1].update(
        outputs=[{"output_type": "stream", "text": ["saved in /home/here"]}]
    ),
    "versions": lambda n: n["cells"].pop(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_faults_are_found(damage):
    damaged = copy.deepcopy(NOTEBOOKS["workflow"])
    DAMAGES[damage](damaged)
    assert faults(damaged) != []


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 12
