"""Numbers in the documentation are those the code gives."""

import ast
import json
import re

from pathlib import Path

import pytest

from pymc_dp import Barker
from pymc_dp.privacy import Decision, PoissonMinibatchDecision
from pymc_dp.privacy.mechanisms.mechanism import ORDERS

ROOT = Path(__file__).resolve().parents[2]


#: Names that pages use without a definition: data, a model, and one of the same parameters with made-up records.
GIVEN = """
import arviz as az
import numpy as np
import pymc as pm

import pymc_dp as dp

rng = np.random.default_rng(1)
X = rng.normal(size=(100_000, 4))
y = (rng.random(len(X)) < 1 / (1 + np.exp(-X @ [-1.5, 0.5, -0.3, 0.0]))).astype(int)


def heights(records):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 10)
        pm.Normal("height", mu, sigma, observed=records)
    return model


model = heights(rng.normal(2, 3, size=100_000))
made_up = heights(np.zeros(20_000))
"""
#: Pages that define all names themselves.
COMPLETE = {
    "accounting", "after_the_release", "checking_models", "fast_mh", "larger_than_memory", "many_machines", "own_step", "privatized", "several_analyses", "sghmc", "tour"
}  # fmt: skip
LONG = {
    "README", "after_the_release", "checking_models", "choosing_a_sampler", "comparing_models", "larger_than_memory", "many_machines", "noisy_scores", "planning", "private_covariates", "privatized", "sghmc"
}  # fmt: skip


def pages():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
        if blocks:
            marks = [pytest.mark.slow, pytest.mark.long] if page.stem in LONG else []
            yield pytest.param(page.stem, blocks, marks=marks, id=page.stem)


# Chains of examples are short, and PyMC and dp.sample warn about it.
@pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS|The effective sample size|The chains disagree"
)
@pytest.mark.parametrize("page, blocks", [*pages()])
def test_code_blocks(page, blocks, tmp_path, monkeypatch):
    """The Python code of a page runs, from top to bottom."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    if page not in COMPLETE:
        exec(GIVEN, names)
    for block in blocks:
        exec(block, names)


def test_minibatches_buy_no_privacy():
    """A high base rate costs 0.4 % more than the decision on all records, a low one three times as much."""
    full = Decision(Barker(), 0.002).renyi(ORDERS)
    for rate, ratio in ((500, 1.004), (5, 3.0)):
        batch = PoissonMinibatchDecision(Barker(), 0.001, rate, 50_000).renyi(ORDERS)
        assert batch[ORDERS == 2] / full[ORDERS == 2] == pytest.approx(ratio, rel=0.02)
        assert (batch >= full * (1 - 1e-3)).all()


def test_the_first_example_of_the_readme_is_the_quickstart():
    """The same code, but for the plan, and what it has printed."""
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    code = "".join("".join(cell["source"]) + "\n" for cell in cells).splitlines()
    outputs = ["".join(o.get("text", [])) for cell in cells for o in cell["outputs"]]
    text = (ROOT / "README.md").read_text()
    written = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1].splitlines()
    assert [line for line in written if line.split("  #")[0].rstrip() not in code] == [
        'idata = dp.sample(epsilon=1.0, delta=1e-6, model=model, covariates="public")'
    ]
    printed = "\n".join(outputs).splitlines()
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL)[1].splitlines()
    assert len(shown) > 20
    assert [line for line in shown if line not in printed] == []


def strings():
    """All strings of the package, of which its messages are made."""
    nodes = [
        node
        for path in (ROOT / "pymc_dp").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    joined = [ast.unparse(node) for node in nodes if isinstance(node, ast.JoinedStr)]
    plain = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return "\n".join([*joined, *plain]).replace('\\"', '"').replace("\\'", "'")


def test_messages_that_are_explained_exist():
    table = (ROOT / "docs" / "messages.md").read_text().split("| message |")[1]
    phrases = re.findall(r"\*([^*]+)\*", "".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE)))
    messages = strings()
    assert len(phrases) > 10
    assert [phrase for phrase in phrases if phrase not in messages] == []
    assert "The account forbids" not in messages


def texts():
    """Every page, and the text of each notebook."""
    for folder in (".", "docs", "examples", "experiments"):
        for path in sorted((ROOT / folder).glob("*.md")):
            yield path, path.read_text()
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        yield path, "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def anchors(text):
    """Names by which the headings of a page can be linked."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {each.strip().replace(" ", "-") for each in words}


def broken(path, text):
    """Links of a page without a target; of addresses elsewhere only the form is checked."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]*)\)", text):
        if re.match(r"\w+:", target):
            if not re.fullmatch(r"https://[\w.-]+\.[a-z]{2,}(/[^\s<>]*)?", target):
                yield target
            continue
        name, _, anchor = target.partition("#")
        there = path.parent / name if name else path
        if path.parent.name == "docs" and not there.suffix:  # as Sphinx names its pages
            there = ROOT / f"{name}.ipynb" if name.startswith("examples/") else there
        if not there.exists():
            yield target
        elif anchor and anchor not in anchors(there.read_text()):
            yield target


def test_links_have_targets():
    pages = dict(texts())
    assert len(pages) > 25
    assert [(p.name, x) for p, text in pages.items() for x in broken(p, text)] == []
    wrong = "[a](nowhere.md) [b](#nothing) [c](http:/x) [d](README.md#no-such-thing)"
    assert len([*broken(ROOT / "README.md", wrong)]) == 4


def test_the_step_of_the_page_is_the_tested_one():
    tested = (ROOT / "tests" / "steps" / "test_own_step.py").read_text()
    copied = re.search(
        r"# The how-to page copies from here,\n+(.*?)\n+# to here", tested, re.DOTALL
    )
    assert copied[1] in (ROOT / "docs" / "own_step.md").read_text()


def prose(text):
    """Lines of a page outside of code, formulas, tables, headings, images and comments."""
    text = re.sub(r"^(```|:::|\$\$).*?^(```|:::|.*\$\$)$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [x for x in text.splitlines() if not x.startswith(("|", "#", "    ", "<!--", "!["))]


def too_long(text, width=100):
    """Lines of prose that could be wrapped: a single long word, such as a link, cannot."""
    return [x for x in prose(text) if len(x) > width and len(x.split()) > 2]


def test_lines_are_wrapped():
    folders = (".", ".github", ".github/ISSUE_TEMPLATE", "docs", "examples", "experiments")
    paths = [path for folder in folders for path in sorted((ROOT / folder).glob("*.md"))]
    assert len(paths) > 20
    assert [(p.name, x) for p in paths for x in too_long(p.read_text())] == []
    long = "word " * 21
    assert too_long(f"# Title\n\n{long}\n") and not too_long(f"```\n{long}\n```\n| {long} |\n")


def referred_to():
    """Names of tests on the pages, with the page."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        (page.name, reference)
        for page in pages
        for reference in re.findall(r"tests/[\w/]+\.py(?:::\w+)*", page.read_text())
    ]
    assert len(found) > 40
    return found


def exists(reference):
    path, *names = reference.split("::")
    if not (ROOT / path).is_file():
        return False
    body = ast.parse((ROOT / path).read_text()).body
    for name in names:
        inner = [node for node in body if getattr(node, "name", None) == name]
        if not inner:
            return False
        body = inner[0].body
    return True


def test_the_tour_leads_to_code():
    """Each place of the tour exists, and names the next one."""
    rows = re.findall(
        r"^\| \d\. `([\w.]+)` \| \[`([\w/.]+)`\]", (ROOT / "docs/tour.md").read_text(), re.M
    )
    assert len(rows) == 5
    nexts = [
        "release(",
        "noisy_total(",
        "source.noisy(",
        "clipped_sum(",
        "bound / max(norm, bound)",
    ]
    for (name, file), following in zip(rows, nexts, strict=True):
        text = (ROOT / "pymc_dp" / file).read_text()
        *kind, function = name.split(".")
        body = ast.parse(text).body
        for k in kind:
            body = next(n for n in body if getattr(n, "name", None) == k).body
        (found,) = [n for n in body if getattr(n, "name", None) == function]
        assert following in ast.get_source_segment(text, found)


def test_tests_that_are_named_exist():
    assert [x for x in referred_to() if not exists(x[1])] == []
    assert not exists("tests/documentation/test_docs.py::test_that_is_not_there")
    assert not exists(
        "tests/privacy/accounting/test_calibration.py::TestPublishedTable::test_that_is_not_there"
    )
