"""Numbers in running text are those that the repository computes.

Tables have their commands on the page (``test_tables``, ``benchmarks/test_table``). Here are the numbers between them.
"""

import inspect
import json
import math
import re

from pathlib import Path

import numpy as np
import pytest

from scipy import stats

from experiments.published_bounds import MinibatchRelease, moments
from pymc_dp import Barker, Penalty
from pymc_dp.planning.simulated_runs import N_CHAIN
from pymc_dp.privacy import (
    Decision,
    Gaussian,
    PureDP,
    SampledGaussian,
    ZeroConcentratedDP,
    epsilon_of,
    max_draws,
)
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.accounting.groups import successive_claims
from pymc_dp.privacy.budget.claims import BudgetTerms
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.scores import private_start
from pymc_dp.steps import Lazy

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def stored(name):
    return json.loads((ROOT / "experiments" / f"{name}_experiments.json").read_text())


def words(page):
    """The text of a page, or of a notebook's own cells, without line ends."""
    if page.endswith(".ipynb"):
        cells = json.loads((EXAMPLES / page).read_text())["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    else:
        text = (ROOT / page).read_text()
    return " ".join(text.split())


def percent(share, digits=0):
    return f"{100 * share:.{digits}f} %"


def assert_says(page, *phrases):
    text = words(page)
    assert [phrase for phrase in phrases if phrase not in text] == []


def test_a_missing_number_is_found():
    with pytest.raises(AssertionError):
        assert_says("README.md", "209 811 census records")


# ------------------------------------------------------------------------------- closed forms
def test_closed_forms():
    ten_thousand = 1 - (1 - 1e-5) ** 10_000
    assert_says(
        "docs/fast_mh.md", f"has a total delta below {math.floor(1000 * ten_thousand) / 1000}"
    )
    assert_says("docs/privatized.md", f"{percent(13 / (75 / 8) - 1)} more noise")
    assert_says("docs/papers.md", f"at `Delta = 0.05` that is {-math.expm1(-0.05):.3f}")
    assert_says("minibatch.ipynb", "5 % for its neighbour, and then no")  # the same


def test_defaults():
    share = inspect.signature(private_start).parameters["share"].default
    assert_says(
        "docs/planning.md",
        f"takes a share of the budget ({percent(share)})",
        f"from a chain of {N_CHAIN} draws on the simulated records",
    )


def test_stochastic_gradients():
    """Of docs/sghmc.md: prices of gradients, and consequences of the settings of the thesis."""
    poisson = [
        SampledGaussian(z, q, "poisson", "add_remove") for z, q in ((5.0, 0.05), (1.0, 0.01))
    ]
    prices = [epsilon_of([(m, 3000)], 1e-5) for m in (Gaussian(100.0), *poisson)]
    (posterior,) = (r for r in stored("sghmc")["normal mean"]["rows"] if r["what"] == "posterior")
    assert round(1 / posterior["sd"]) == 11  # steps begin at 1
    begin = math.sqrt(2 * 0.005 / 1) * 0.01 / 0.7
    radon = {r["what"]: r for r in stored("sghmc")["radon"]["rows"]}
    assert_says(
        "docs/sghmc.md",
        "3000 gradients that cost {:.2f} on all records at `z = 100` cost {:.2f} on batches of 5 % "
        "at `z = 5`, but {:.2f} on batches of 1 % at `z = 1`".format(*prices),
        f"({math.floor(1000 * math.sqrt(10 / 11)) / 1000} of the standard deviation for 10 steps)",
        "These steps are eleven posterior standard deviations long",
        f"*friction, q = 0.01* begins at {begin:.4f}",
        f"neither does the posterior mode: {radon['posterior mode, not private']['accuracy']:.3f}.",
    )


def test_groups():
    """Of docs/accounting.md: a whole budget, for several records."""
    by_order, gaussian = (
        [successive_claims(Cost.of([(terms.whole(), 1)]), k, terms) for k in (2, 3, 5)]
        for terms in (AdaptiveComposition.opened(1.0, 1e-6, a) for a in ("best", "gaussian"))
    )
    assert_says(
        "docs/accounting.md",
        "is then {:.2f} for two records, {:.2f} for three and {:.2f} for five".format(*gaussian),
        "is at most {:.2f} for two records, {:.2f} for three and {:.2f} for five".format(*by_order),
    )


@pytest.mark.parametrize(
    "words, n, epsilon, delta",
    [("ten of (0.1, 1e-7)", 10, 0.1, 1e-7), ("two of (0.5, 5e-7)", 2, 0.5, 5e-7), ("a hundred counts of (0.01, 1e-8)", 100, 0.01, 1e-8)],
)  # fmt: skip
def test_what_each_composition_leaves(words, n, epsilon, delta):
    """Of docs/several_analyses.md: claims on accounts of (1, 1e-6), by the ledger itself."""
    found = []
    for composition, accountant in (("basic", "best"), ("gaussian", "gaussian")):
        ledger = Ledger(epsilon=1.0, delta=1e-6, composition=composition)
        for k in range(n):
            ledger.claim(
                BudgetTerms(f"b{k}", epsilon, delta, accountant), "x", [(Gaussian(1e9), 1)]
            )
        found.append(ledger.account.left(ledger.budget_claims()))
        part = ledger.budget_claims()[0]
    assert found[0] == {"epsilon": 0, "delta": 0}
    left = found[1]["mu"]
    rest = epsilon_of([(Gaussian(1 / left), 1)], 1e-6, "gaussian")
    more = math.floor(left**2 / part.mu**2)
    assert_says("docs/several_analyses.md", f"| {words} | nothing | {rest:.3f} | {more} |")


def test_releases_by_other_tools():
    """Of docs/several_analyses.md: pure DP in Gaussian DP, and from add/remove to substitution."""
    assert_says("docs/several_analyses.md", f"{PureDP(1.0).gaussian_mu:.3f} at epsilon 1")
    assert PureDP(0.1).for_group(2) == PureDP(0.2)
    assert ZeroConcentratedDP(0.1).for_group(2) == ZeroConcentratedDP(0.4)


# ------------------------------------------------------------------- accounts of Räisä and of Lode
def composed_draws(epsilon, delta, sd, rate, points=2**20, reach=40.0):
    """Number of mixtures with means 1 and -1 that compose to (epsilon, delta): privacy losses on a grid, by Fourier transform."""
    x = np.linspace(-25 * sd, 25 * sd, 500_001)
    middle, step = (x[1:] + x[:-1]) / 2, 2 * reach / points

    def mixture(law, mean):
        return (1 - rate) * law(0) + rate * law(mean)

    masses = mixture(lambda mean: np.diff(stats.norm.cdf(x, mean, sd)), 1)
    loss = np.log(mixture(lambda mean: stats.norm.pdf(middle, mean, sd), 1))
    loss -= np.log(mixture(lambda mean: stats.norm.pdf(middle, mean, sd), -1))
    below = np.floor(loss / step).astype(int)
    part = loss / step - below
    law = np.bincount(below % points, masses * (1 - part), points)
    law += np.bincount((below + 1) % points, masses * part, points)
    transform, values = np.fft.rfft(law), np.fft.fftfreq(points, 1 / points) * step
    above = values > epsilon

    def spent(draws):
        return np.fft.irfft(transform**draws, points)[above] @ -np.expm1(epsilon - values[above])

    low, high = 0, 10_000
    while high - low > 1:
        middle_draws = (low + high) // 2
        low, high = (middle_draws, high) if spent(middle_draws) <= delta else (low, middle_draws)
    return low


@pytest.mark.slow
def test_fourier_accounts():
    """Minibatch penalty of Räisä: the published numbers count the sensitivity twice; the tight ones."""
    sd, epsilons = math.sqrt(0.7), (1, 2, 4, 6)
    with np.errstate(divide="ignore", invalid="ignore"):
        published = [composed_draws(e, 1e-6, sd, 0.01) for e in epsilons]
    released = SampledGaussian(sd, 0.01, "without_replacement", "substitute")
    tight = [max_draws([(released, 1)], e, 1e-6, accountant="pld") for e in epsilons]
    assert_says(
        "docs/papers.md",
        "The published counts {}, {}, {} and {} come out exactly".format(*published),
        "The tight ones are {}, {}, {} and {}".format(*tight),
    )
    assert_says("accounting.ipynb", "gives exactly {}, {}, {} and {} iterations".format(*published))


@pytest.mark.slow
def test_moments_accounts():
    """Lode's second column: far above Poisson sampling, a little below a bound on batches of fixed size."""
    published = {1e-6: 2.254, 1e-5: 2.061, 1e-4: 1.848, 1e-3: 1.607, 1e-2: 1.324}
    noise = [math.sqrt(2 / (0.49 * 3 * t ** (-1 / 3))) for t in range(1, 201)]
    poisson = [(SampledGaussian(z, 0.01, "poisson", "add_remove"), 10) for z in noise]
    fixed = [(MinibatchRelease(z, 0.01), 10) for z in noise]
    more = [epsilon_of(fixed, d, moments) / e - 1 for d, e in published.items()]
    assert 0.035 < min(more) < max(more) < 0.075
    assert_says("accounting.ipynb", "published values by 4 to 7 %")
    least = epsilon_of(poisson, 1e-6, moments)
    assert_says(
        "docs/papers.md", f"({least:.2f} at delta = 1e-6 would be, not {published[1e-6]:.2f})"
    )


def test_records_of_the_quickstart():
    data = pytest.importorskip("causaldata", reason="the extra 'examples' is not installed")
    men = f"{len(data.mortgages.load_pandas().data):,}".replace(",", " ")
    assert_says("README.md", f"{men} men of the 1960 US census")
    assert_says("examples/quickstart.py", f"{men} men of the 1960 US census")
    assert_says("quickstart.ipynb", f"The data are {men} census records")


def test_what_accepted_moves_cost():
    """The table of rules in docs/planning.md: accepted moves per Rényi divergence."""
    rows = re.findall(
        r"^\| (Barker|penalty, noise [\d.]+) \| (.*) \|$",
        (ROOT / "docs" / "planning.md").read_text(),
        re.M,
    )
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    log_ratios = -0.5 * 0.7**2 + 0.7 * points

    def worth(rule, laziness):
        rule = rule if laziness == 1 else Lazy(rule, laziness)
        accepted = weights @ [rule.probability(x) for x in log_ratios]
        return accepted / Decision(rule, 0.01).renyi([12])[0]

    for name, cells in rows:
        rule = Barker() if name == "Barker" else Penalty(float(name.split()[-1]))
        values = [worth(rule, w) / worth(Barker(), 1) for w in (1, 1 / 2, 1 / 4, 1 / 10)]
        assert cells.split(" | ") == [f"{v:.2f}" for v in values], name
    assert len(rows) == 4
