"""Secret randomness: no word of it is drawn twice, by runs, chains, restarts, processes or copies; none of it is kept.

All of it comes in words of 64 bits from one class, which is shown here: with the words given, a run repeats to the last bit.
Two words out of a million are equal by chance once in 10**7 audits.
"""

from __future__ import annotations

import contextlib
import io
import pickle

import cloudpickle
import numpy as np
import pytest

from pymc_dp.model import RecordLikelihood
from pymc_dp.model.sums.batch_likelihood import BatchLikelihood
from pymc_dp.privacy.budget.draws import TOKEN
from pymc_dp.privacy.randomness.bits import OperatingSystemBits
from tests.audit.audited_samplers import SAMPLERS, budget_for, build, normal_model, sample


class Shared(AssertionError):
    """Secret randomness was drawn twice."""


@contextlib.contextmanager
def words_to(path, source=None):
    """Every secret word goes into a file, which processes share; from another source, if one is given."""
    one, many = OperatingSystemBits.word, OperatingSystemBits.words

    def words(self, n):
        drawn = many(self, n) if source is None else source.integers(0, 2**64, n, dtype=np.uint64)
        with path.open("ab", buffering=0) as file:
            file.write(drawn.tobytes())
        return drawn

    def word(self):
        if source is not None:
            return int(words(self, 1)[0])
        drawn = one(self)
        with path.open("ab", buffering=0) as file:
            file.write(np.uint64(drawn).tobytes())
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OperatingSystemBits, "words", words)
        patch.setattr(OperatingSystemBits, "word", word)
        yield


def check_all_different(path, least):
    words = np.frombuffer(path.read_bytes(), dtype=np.uint64)
    assert len(words) >= least  # else nothing was heard
    if len(np.unique(words)) < len(words):
        raise Shared(f"{len(words) - len(np.unique(words))} of {len(words)} words")


MODEL = normal_model(0.4)
#: Costs of batches take long to plan.
SLOW = ("penalty on batches", "Barker on batches", "SGHMC on batches")
NAMES = [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in SAMPLERS]


def run(name, path, *, source=None, **options):
    """Two chains with a fixed seed: their draws and statistics, but for the number of the budget, which is another one each time."""
    budget = budget_for(chains=2)
    step = build(name, MODEL, budget, 0.4)
    with words_to(path, source):
        idata = sample(MODEL, step, budget, draws=30, chains=2, seed=77, **options)
    stats = [
        idata.sample_stats[k].values
        for k in sorted(idata.sample_stats.data_vars)
        if k not in ("warning", TOKEN)
    ]
    return np.concatenate([np.ravel(x).astype(float) for x in (idata.posterior["mu"].values, *stats)])  # fmt: skip


def least(name):
    """Words that two chains of 30 draws take at least: one for each decision, some for each gradient."""
    return 50 if "SGHMC" not in name else 200


@pytest.mark.parametrize("name", NAMES)
def test_no_word_is_drawn_twice(name, tmp_path):
    """Two runs with the same seed, of two chains each, one of them in processes of their own."""
    hosts = ({}, {"cores": 2, "mp_ctx": "fork"})
    one, other = (run(name, tmp_path / "words", **host) for host in hosts)
    check_all_different(tmp_path / "words", 2 * least(name))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_is_secret(name, tmp_path):
    """With the same words and the same seed a run repeats; so there is no other source, of seeds or of secrets.

    Control: as from a generator that is made anew for each run, words are found to be drawn twice.
    """
    path = tmp_path / "words"
    one, other = (run(name, path, source=np.random.default_rng(8)) for _ in range(2))
    assert np.array_equal(one, other)
    drawn = path.read_bytes()
    assert drawn[: len(drawn) // 2] * 2 == drawn
    with pytest.raises(Shared):
        check_all_different(path, least(name))


@pytest.mark.parametrize("name", ["penalty", "HMC"])
def test_words_copied_to_processes_are_found(name, tmp_path):
    """Control: a secret generator with a state, which is made once and copied when workers are forked."""
    run(name, tmp_path / "words", source=np.random.default_rng(), cores=2, mp_ctx="fork")
    with pytest.raises(Shared):
        check_all_different(tmp_path / "words", least(name))


# ---------------------------------------------------------------- what a copy of a step takes along


def walk(step, n=12):
    """So many draws of a chain, which are returned; its last point is not what it began with."""
    step.set_rng(np.random.default_rng(5))
    step.stop_tuning()
    point, path = MODEL.initial_point(), []
    for _ in range(n):
        point, _ = step.step(point)
        path.append(float(point["mu"]))
    return path


@contextlib.contextmanager
def overheard():
    """Batches and log-likelihoods of records, as the step sees them."""
    heard = {"batches": [], "log-likelihoods": []}

    def listener(owner, name):
        real = getattr(owner, name)

        def method(self, theta, *args, **options):
            result = real(self, theta, *args, **options)
            batch = next(
                (a for a in (*args, options.get("index")) if isinstance(a, np.ndarray)), None
            )
            if batch is not None and 3 <= len(batch) < 60:
                heard["batches"].append(np.array(batch))
            values = None if name == "total" else result
            if getattr(theta, "keeps_logp", False):  # a term
                values = self._latest._found[theta.theta.tobytes()]
            if values is not None:
                heard["log-likelihoods"].append(np.array(values))
            return result

        return method

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in [
            *((RecordLikelihood, n) for n in ("logp", "logp_at", "total")),
            (BatchLikelihood, "all_records"),
        ]:
            patch.setattr(owner, name, listener(owner, name))
        yield heard


class Inspector(cloudpickle.Pickler):
    """Notes every random generator on its way into a pickle."""

    def __init__(self, file):
        super().__init__(file)
        self.generators = []

    def persistent_id(self, thing):
        if isinstance(thing, np.random.Generator | np.random.RandomState):
            self.generators.append(thing)


def dumped(thing):
    """A pickle, and the generators in it."""
    file = io.BytesIO()
    inspector = Inspector(file)
    inspector.dump(thing)
    return file.getvalue(), inspector.generators


def kept(step, words, heard):
    """What is in a pickle of the step that should not be."""
    raw, generators = dumped(step)
    secret = {"words": [w.tobytes() for w in words]}
    for name, arrays in heard.items():
        kinds = (np.int64, np.int32) if name == "batches" else (np.float64,)
        secret[name] = [np.ascontiguousarray(a, kind).tobytes() for a in arrays for kind in kinds]
    found = {name for name, forms in secret.items() if any(form in raw for form in forms)}
    public = {
        id(step.rng),
        *map(id, dumped(MODEL)[1]),
    }  # of proposals, and of the model's variables
    return found | {"generator" for g in generators if id(g) not in public}


@pytest.mark.parametrize("name", NAMES)
def test_pickles_hold_no_secrets(name, tmp_path):
    """Before the first draw and after some; the data, which workers need, are in them."""
    step = build(name, MODEL, budget_for(chains=3), 0.4)
    assert kept(step, [], {}) == set()
    path = tmp_path / "words"
    with words_to(path), overheard() as heard:
        walk(step)
    words = np.frombuffer(path.read_bytes(), dtype=np.uint64)
    assert len(words) >= 10
    assert bool(heard["batches"]) == ("batches" in name or name == "DP-Fast MH")
    assert heard["log-likelihoods"] or "SGHMC" in name
    assert kept(step, words, heard) == set()
    copies = [pickle.loads(cloudpickle.dumps(step)) for _ in range(2)]
    with words_to(path):
        for copy in copies:
            walk(copy)
    check_all_different(path, 30)


def keeps_batch(step, heard):
    step.last_batch = heard["batches"][-1].astype(np.int32)


def keeps_records(step, heard):
    step.state = {"at": heard["log-likelihoods"][-1]}


def keeps_generator(step, heard):
    step._secret = np.random.default_rng()


def keeps_state(step, heard):
    step.memory = list(range(5)), step.words[3:4]


KEPT = {
    keeps_batch: "batches",
    keeps_records: "log-likelihoods",
    keeps_generator: "generator",
    keeps_state: "words",
}


def test_what_a_step_keeps_is_found(tmp_path):
    """Control."""
    step = build("penalty on batches", MODEL, budget_for(chains=3), 0.4)
    with words_to(tmp_path / "words"), overheard() as heard:
        walk(step)
    words = np.frombuffer((tmp_path / "words").read_bytes(), dtype=np.uint64)
    before = set(vars(step))
    for fault, found in KEPT.items():
        step.words = words
        fault(step, heard)
        step.words = None
        assert kept(step, words, heard) == {found}
        for name in set(vars(step)) - before:
            delattr(step, name)
