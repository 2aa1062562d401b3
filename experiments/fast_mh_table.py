"""What a decision of DP-Fast MH (Zhang, Zhang 2023) costs: the claim, the rule behind it, and decision accounting.

Tables of ``docs/fast_mh.md``. The numbers of records are those of the paper's experiments, and so are delta and the
number of iterations. ``K`` follows the guidance of its section 6.2 or of its appendix E. Then ``lam`` and ``c`` are
those of the longest proposal that the paper's rule calls free and that goes to a minibatch 99 times in 100.
"""

import math

from dataclasses import dataclass

import numpy as np

from runner import Experiment, Options, Stored, table
from scipy.optimize import brentq
from scipy.stats import binom, poisson

from pymc_dp import Barker, Penalty
from pymc_dp.privacy import Decision, Mechanism, PoissonMinibatchDecision, epsilon_of
from pymc_dp.steps import Lazy, Metropolis

DELTA = 1e-5  # of one iteration in the paper, of the whole run for us
ITERATIONS = 10_000
CLAIM_DELTA = 0.1  # no composition of the claims has less than 1 - (1 - DELTA)^ITERATIONS = 0.095
FULL = 0.01  # probability that all records decide
# Temperature times clip bound. Mixture: the paper's bound for records in [-3, 3] with variance 2, temperature 500.
CLIP = {50_000: math.hypot(2 * 3 + 9, 3 + 6) / 2 / 500}
RULES = (Barker(), Lazy(Barker(), 0.5), Lazy(Penalty(1.0), 0.5))


@dataclass(frozen=True)
class Setting:
    """One claim, and the longest proposal it covers without noise."""

    n: int
    epsilon: float  # claimed for one iteration
    guidance: float  # K / (epsilon * n)

    @property
    def limit(self) -> int:
        """``K``."""
        return round(self.guidance * self.epsilon * self.n)

    @property
    def sensitivity(self) -> float:
        """Largest sensitivity of one place for which the paper adds no noise."""
        return self.epsilon * self.n / (6 * self.limit)

    @property
    def places(self) -> float:
        """Expected size of the batch."""
        return brentq(lambda b: poisson.sf(self.limit - 1, b) - FULL, 1, self.limit)

    @property
    def lam(self) -> float:
        """``lam``: Lemma 1 of the paper, ``sensitivity = 2 ln(1 + n c / lam)``, solved."""
        return self.places * math.exp(-self.sensitivity / 2)

    @property
    def c(self) -> float:
        """What one record can do to the log-ratio."""
        return (self.places - self.lam) / self.n

    @property
    def noise(self) -> float:
        """Noise of the paper for proposals that are any longer."""
        share = self.limit / self.n
        sigma = 6 * share * math.sqrt(2 * math.log(2.5 * share / DELTA))
        return sigma / self.epsilon * self.sensitivity

    def decisions(self, *rules, lam: float | None = None) -> list[Mechanism]:
        """Decisions of an iteration by other rules, or on another batch."""
        rate = lam or self.lam
        return [
            PoissonMinibatchDecision(r, self.c, batch_rate=rate, n_records=self.n) for r in rules
        ]

    def on_all(self) -> list[Mechanism]:
        """Decisions on all records."""
        return [Decision(rule, 2 * self.c) for rule in RULES]

    @property
    def start(self) -> list[str]:
        """Cells that identify the row."""
        return [number(self.n), f"{self.epsilon:g}", number(self.limit)]


SETTINGS = [Setting(n, e, g) for n in (50_000, 12_214) for e in (0.05, 0.1) for g in (1 / 6, 1)]


def number(k: float) -> str:
    return f"{k:,.0f}".replace(",", " ")


def composed_claim(epsilon: float, delta: float, total: float) -> float:
    """Epsilon of all iterations, if nothing but (epsilon, delta) is known of each: Kairouz, Oh, Viswanath (2017), Theorem 3.3."""
    k = ITERATIONS
    rest = 1 - math.exp(math.log1p(-total) - k * math.log1p(-delta))
    loss = epsilon * (2 * np.arange(k + 1) - k)
    weight = binom.pmf(np.arange(k + 1), k, 1 / (1 + math.exp(-epsilon)))

    def excess(e: float) -> float:
        return weight @ -np.expm1(np.minimum(e - loss, 0)) - rest

    return brentq(excess, 0, k * epsilon)


def papers_formula(epsilon: float) -> float:
    """Epsilon of all iterations by the last lines of the proof of the paper's Theorem 2."""
    k = ITERATIONS
    return math.sqrt(2 * k * math.log(1 / DELTA)) * epsilon + k * epsilon * math.expm1(epsilon)


def metropolis_delta(s: Setting) -> float:
    """Delta of Metropolis' rule on a minibatch at the claimed epsilon: the most and the least accepting record, the worst log-ratio."""
    w = math.log1p(s.n * s.c / s.lam)
    x, places = np.linspace(-3 * w, 3 * w, 6001), np.arange(40)

    def law(weight: float) -> np.ndarray:
        rate = (2 * s.lam / s.n + s.c) / (1 + math.exp(weight))
        bits = np.exp(Metropolis().log_probabilities(x[:, None] + places * weight))
        return bits @ poisson.pmf(places, rate)

    least = law(-w)
    worst = 0.0
    for weight in np.linspace(0, w, 21):
        for p, q in ((law(weight), least), (least, law(weight))):
            worst = max(worst, float((p - math.exp(s.epsilon) * q).max()))
    return worst


def least_noise(s: Setting) -> Penalty:
    """Least noise with which the claim is true."""

    def excess(log_scale: float) -> float:
        (decision,) = s.decisions(Penalty(math.exp(log_scale)))
        profile = decision.privacy_profile([s.epsilon])
        return math.log(max(profile[0], 1e-300) / DELTA)

    return Penalty(math.exp(brentq(excess, math.log(0.011), math.log(20.0), xtol=1e-4)))


def group_privacy(s: Setting) -> float:
    """Epsilon of Barker's decision by the proof of Theorem 2: each place may move the log-odds by the full sensitivity."""
    up, down = math.expm1(s.sensitivity) / s.n, math.expm1(-s.sensitivity) / s.n
    return s.limit * (math.log1p(up) - math.log1p(down))


def spent(mechanism: Mechanism, iterations: int = ITERATIONS, digits: int = 2) -> str:
    """Epsilon by decision accounting."""
    return f"{epsilon_of([(mechanism, iterations)], DELTA):.{digits}f}"


def claim(s: Setting) -> list[str]:
    """A row of table 1."""
    distance = f"{s.c / CLIP[s.n]:.2f}" if s.n in CLIP else ""
    sums = papers_formula(s.epsilon), composed_claim(s.epsilon, DELTA, CLAIM_DELTA)
    begin = number(s.places), number(s.lam), f"{s.c:.4f}", distance, number(ITERATIONS * s.epsilon)
    return [*begin, *(f"{epsilon:.1f}" for epsilon in sums)]


def rule(s: Setting) -> list[str]:
    """A row of table 2."""
    delta, noise, needed = metropolis_delta(s), Penalty(s.noise), least_noise(s)
    deltas = f"{delta:.4f}", f"{delta / DELTA:.0f} x", f"{-math.expm1(-2 * s.c):.4f}"
    long, least = s.decisions(noise, needed)
    first = f"{noise.scale:.1f} ({noise.probability(0.0):.2f})", spent(long)
    second = f"{needed.scale:.2f} ({needed.probability(0.0):.2f})", spent(least, digits=1)
    return [*deltas, *first, *second]


def decision(s: Setting) -> list[str]:
    """A row of table 3."""
    ours, group = s.decisions(*RULES), group_privacy(s)
    added_up = f"{composed_claim(group, 0.0, DELTA):.1f}"
    costs = map(spent, [*ours, *s.on_all()])
    return [spent(ours[0], 1, digits=4), *costs, f"{group:.4f}", added_up]


def batches() -> list[list[str]]:
    """Table 4: the first setting with other batches."""
    s = SETTINGS[0]
    rates = [factor * s.n * s.c for factor in (0.1, 0.25, 0.5, 1, 2, 5, 20, 100)]
    batches = [(number(lam), s.decisions(*RULES, lam=lam)) for lam in (*rates, s.lam)]
    rows = [[lam, number(ours[0].expected_batch), *ours] for lam, ours in batches]
    rows.append(["all records", number(s.n), *s.on_all()])
    return [[lam, size, *(spent(m, digits=3) for m in costs)] for lam, size, *costs in rows]


HEADS = {
    "claims": "N | claim | K | places | lam | c | distance | added up | the paper's formula | at best",
    "rules": "N | claim | K | delta, minibatch | over 1e-5 | delta, all records | noise, if longer | 10 000 | noise needed | 10 000",
    "decisions": "N | claim | K | Barker: one | 10 000 | lazy Barker | lazy penalty | all records: Barker | lazy Barker | lazy penalty | group privacy: one | 10 000",
    "batches": "lam | places | Barker | lazy Barker | lazy penalty",
}


def run(name: str, seed: int, options: Options) -> Stored:
    """Rows of a table, as text."""
    if name == "batches":
        return {"rows": batches()}
    row = {"claims": claim, "rules": rule, "decisions": decision}[name]
    return {"rows": [[*s.start, *row(s)] for s in SETTINGS]}


def tables(stored: Stored) -> list[str]:
    """All tables, aligned to the right."""
    lines = []
    for name, head in HEADS.items():
        lines += [*table(head.split(" | "), stored[name]["rows"], "---:", "---:"), ""]
    return lines


EXPERIMENT = Experiment(__file__, run, dict.fromkeys(HEADS, 0), tables, small=("claims",))

if __name__ == "__main__":
    EXPERIMENT.main()
