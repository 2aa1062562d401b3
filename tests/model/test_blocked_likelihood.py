"""Records in blocks: the same whole numbers as in one piece, from any source; models that are no function of a block."""

from __future__ import annotations

import functools

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp

from pymc_dp.data import Records
from pymc_dp.errors import UnsupportedModel
from pymc_dp.model import RecordLikelihood
from pymc_dp.model.blocked_likelihood import BlockedLikelihood
from pymc_dp.model.graphs.data_variables import observed_arrays
from pymc_dp.model.sums.batch_likelihood import BatchLikelihood
from tests.data.mixed_columns import fed
from tests.terms import clipped_grad_steps, norm_counts, product_steps

N, D = 1003, 4
MODE = {"mode": "FAST_COMPILE"}
EDGES = np.array([0.2, 0.5, 1.0])


@functools.cache
def columns():
    rng = np.random.default_rng(1)
    x, group = rng.normal(size=(N, D)), rng.integers(0, 3, N)
    return {
        "x": x,
        "group": group.astype(np.int16),
        "y": (rng.random(N) < 0.4).astype(np.int8),
        "weight": rng.gamma(2.0, size=N),
    }


def xy():
    return {name: columns()[name] for name in ("x", "y")}


def regression(x, group, y, weight):
    slope, level = pm.Normal("slope", 0, 1, shape=D), pm.Normal("level", 0, 1, shape=3)
    scale = pm.HalfNormal("scale", 1)
    pm.Bernoulli("event", logit_p=level[group] + x @ slope + 0.1 * pm.math.sqr(x[:, 0]), observed=y)
    pm.Gamma("size", 2.0, scale + 0.1 * pm.math.exp(x[:, 1]), observed=weight)


@functools.cache
def whole():
    with pm.Model() as model:
        regression(**columns())
    return RecordLikelihood(model, compile_kwargs=MODE)


def reduced(likelihood):
    """All reductions, as whole numbers; and floats where nothing is clipped."""
    rng = np.random.default_rng(2)
    n_dim = likelihood.n_dim
    old, new, directions = rng.normal(size=n_dim) * 0.3, rng.normal(size=n_dim) * 0.3, rng.normal(size=(n_dim, 3))  # fmt: skip
    index = rng.integers(0, likelihood.n_records, 150)
    exact = [
        likelihood.clipped_change(new, old, 0.4),
        *clipped_grad_steps(likelihood, old, 1.5),
        *clipped_grad_steps(likelihood, old, 0.7, directions=directions, keeps_logp=True),
        *clipped_grad_steps(likelihood, old, 0.7, index, directions=np.full(n_dim, 0.5)),
        norm_counts(likelihood, old, directions, EDGES),
        *product_steps(likelihood, old, directions, 1.1),
        likelihood.logp_at(np.array([old, new]), index),
        likelihood.logp_at(old, index[:0]),
        likelihood.log_prior(new),
        likelihood.grad_log_prior(new),
    ]
    plain = likelihood.clipped_change(new, old, np.inf), likelihood.clipped_grad(old, np.inf)
    return exact, plain


def assert_equal(found, expected):
    for a, b in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.slow
def test_blocks_give_the_same_whole_numbers(tmp_path):
    """In blocks of several lengths, mapped from a file, and from a pickle."""
    np.save(tmp_path / "x.npy", columns()["x"])
    mapped = columns() | {"x": np.load(tmp_path / "x.npy", mmap_mode="r")}
    likelihood = BlockedLikelihood(fed(regression, columns()), Records(columns(), block_rows=1003))
    expected = reduced(likelihood)
    # In one piece, what depends on data alone is computed once, by NumPy: its last bits may differ.
    for a, b in zip(reduced(whole())[0], expected[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=2 * N if np.asarray(a).dtype == int else 0)
    sources = [
        *(Records(columns(), block_rows=n) for n in (64, 37)),
        Records(mapped, block_rows=500),
    ]
    for records in sources:
        likelihood.records = records
        assert_equal(reduced(likelihood), expected)
    assert_equal(reduced(cloudpickle.loads(cloudpickle.dumps(likelihood))), expected)


def build(function, data=None, **options):
    model, data = fed(function, data or columns()), Records(data or columns())
    return BlockedLikelihood(model, data, compile_kwargs=MODE, **options)


@pytest.mark.slow
def test_data_are_those_of_the_blocks():
    """Keys of the columns; parameters and prior are those of the model."""
    likelihood = build(regression)
    other = build(logistic, {"x": columns()["x"] + 1, "y": columns()["y"]})
    assert other.row_keys["event"] == likelihood.row_keys["event"] != likelihood.row_keys["size"]
    assert likelihood.slices == whole().slices and likelihood.n_records == N
    point = likelihood.unravel(np.arange(8.0))
    assert np.array_equal(likelihood.ravel(point), np.arange(8.0))
    assert likelihood.n_dim == 8 and "1003 records" in repr(likelihood)


@pytest.mark.slow
def test_the_model_keeps_what_it_holds():
    """Arrays of the user; what was compiled has the rows of others, also where NumPy draws."""
    model = fed(regression, columns())
    before = {v: v.get_value(borrow=True) for v in model.data_vars}
    found = dp.Simulator(model, data=Records(columns()), covariates="public", compile_kwargs=MODE)
    assert all(v.get_value(borrow=True) is a and not a.any() for v, a in before.items())
    with model:
        pm.set_data({"y": np.ones(7, int)})
    drawn = found.simulated.draw(np.zeros(8), np.random.default_rng(1))
    assert [len(y) for y in drawn] == [N, N]


OUTSIDE = np.random.default_rng(3).normal(size=500)
ON_ROWS = "depends on the number of rows of a block, or on their positions"
#: Outcomes are Bernoulli with this log-odds.
NO_FUNCTIONS = {
    "centred": (lambda x, y: (x - x.mean(axis=0)) @ pm.Normal("b", shape=D), "depends on all of the array 'x'"),
    "from outside": (lambda x, y: OUTSIDE * pm.Normal("b"), "raised ValueError with 192 made-up rows in each of x, y"),
    "as long as what stands there": (lambda x, y: x[:, 0] + pm.Normal("b", shape=2), "raised ValueError with 192 made-up"),
    "counted": (lambda x, y: pm.math.abs(pt.arange(x.shape[0])) * pm.Normal("b"), ON_ROWS),
    "with the number": (lambda x, y: x[:, 0] * pm.Normal("b") / x.shape[0], ON_ROWS),
    "prior with the number": (lambda x, y: x[:, 0] * pm.Normal("b", 0, x.shape[0]), ON_ROWS),
    "a parameter for each": (lambda x, y: x[:, 0] + pm.Normal("b", shape=x.shape[0]), "has an entry for each record"),
    "an index of parameters": (lambda x, y: pm.Normal("b", shape=N)[y], "has an entry for each record"),
    "no column": (lambda x, y: pm.Data("z", [0.0]) * pm.Normal("b"), r"pm.Data\('z'\) is no column of the data, x, y"),
    "as long as a block": (lambda x, y: OUTSIDE[:192] * pm.Normal("b"), "with 193 made-up rows"),
    # PyTensor would compute it once, and compiled code would read beyond it.
    "ones": (lambda x, y: pt.ones_like(x) @ pm.Normal("b", shape=D), "with as many rows as a block"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_FUNCTIONS)
def test_what_is_no_function_of_a_row_is_refused(name):
    data = xy()
    log_odds, message = NO_FUNCTIONS[name]

    def model(x, y):
        pm.Bernoulli("event", logit_p=log_odds(x, y), observed=y)

    with pytest.raises(UnsupportedModel, match=message):
        build(model, data)


@pytest.mark.parametrize(
    "held, error, message",
    [
        ({"y": np.zeros((1, 2))}, UnsupportedModel, r"rows of float64 \(2,\), .*int8 \(\): write pm.Data\('y', np.zeros\(\(1,\), 'int8'\)\)"),
        ({"x": np.zeros((1, D), int)}, UnsupportedModel, r"np.zeros\(\(1, 4\), 'float64'\)"),
        ({"x": np.float64(1)}, UnsupportedModel, "rows of float64"),
        ({"public": ["x"]}, ValueError, "public= has 'x', a column of the data"),
        ({"observed": np.zeros(1)}, UnsupportedModel, "'event' is not observed as a column of the data"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_columns(held, error, message):
    public, observed = held.pop("public", []), held.pop("observed", None)
    with pm.Model() as model:
        x, y = (
            pm.Data(n, held.get(n, a))
            for n, a in (("x", np.zeros((1, D))), ("y", np.zeros(1, int)))
        )
        mean = pm.Normal("b") * x.sum(axis=-1)
        pm.Normal("event", mean, 1.0, observed=y if observed is None else observed)
    data = Records(xy())
    with pytest.raises(error, match=message):
        BlockedLikelihood(model, data, public=public)


def test_public_arrays_and_many_groups():
    """What is public may have any number of rows, and parameters more than a made-up block by default."""
    knots, n = np.random.default_rng(2).normal(size=192), 300
    data = {"k": np.arange(N) % n, "y": columns()["weight"]}

    def model(k, y):
        mean = pm.Normal("level", shape=n)[k] + pm.math.exp(-((y[:, None] - knots) ** 2)).sum(
            axis=1
        )
        pm.Normal("height", mean, 1.0, observed=y)

    likelihood = build(model, data, public=[knots])
    with pm.Model() as direct:
        model(data["k"], data["y"])
    theta = np.linspace(-1, 1, n)
    wanted = RecordLikelihood(direct, public=[knots], compile_kwargs=MODE).clipped_grad(theta, 1.0)
    np.testing.assert_allclose(likelihood.clipped_grad(theta, 1.0), wanted, atol=1e-6)


def test_rows_that_change_in_a_longer_block(monkeypatch):
    """A planted fault: values of the first block stay in the place of those of others."""
    real = BatchLikelihood.load

    def load(self, arrays, n_records):
        tail = {v: np.concatenate([a[:64], a[: len(a) - 64]]) for v, a in arrays.items()}
        real(self, tail if n_records > 192 else arrays, n_records)

    monkeypatch.setattr(BatchLikelihood, "load", load)
    with pytest.raises(UnsupportedModel, match="number of rows of a block"):
        build(logistic, xy())


@pytest.mark.slow
def test_other_shapes_of_columns():
    """A transposed matrix, a column as a matrix, and other types."""
    data = {"x": columns()["x"].astype(np.float32), "y": columns()["weight"]}

    def model(x, y):
        mu = pm.math.dot(pm.Normal("b", 0, 1, shape=D), x.T)[:, None]
        pm.Normal("height", mu, 1.0, observed=y[:, None])

    with pm.Model() as direct:
        model(**data)
    theta = np.linspace(-0.3, 0.5, D)
    found = BlockedLikelihood(fed(model, data), Records(data, block_rows=128))
    expected = clipped_grad_steps(RecordLikelihood(direct), theta, 1.0)[0]
    assert np.array_equal(clipped_grad_steps(found, theta, 1.0)[0], expected)


def test_an_index_out_of_range_counts_as_the_nearest_one():
    """An error would show one bit of one record."""
    terms = []
    for group in (12345, columns()["group"].max()):
        data = dict(columns())
        data["group"] = np.where(np.arange(N) == 777, group, data["group"])
        likelihood = build(regression, data)
        terms.append(likelihood.clipped_grad(np.full(likelihood.n_dim, 0.3), 1.0))
    assert np.array_equal(*terms)


def logistic(x, y):
    pm.Bernoulli("event", logit_p=x @ pm.Normal("slope", 0, 1, shape=D), observed=y)


@functools.cache
def simulator():
    data = Records(xy(), block_rows=300)
    return dp.Simulator(fed(logistic, xy()), data=data, covariates="public", compile_kwargs=MODE)  # fmt: skip


@pytest.mark.parametrize("public", [True, False])
def test_the_model_of_some_rows_has_no_observed_value(public):
    """Public covariates are those of records, in the order of the file; what is observed is made up."""
    data = {"x": columns()["x"], "y": np.full(N, 7.5)}

    def model(x, y):
        pm.Normal("height", x @ pm.Normal("slope", 0, 1, shape=D), 1.0, observed=y)

    found = build(model, data)
    with found.some_rows(100, np.random.default_rng(1), public=public):
        (observed,), rows = observed_arrays(found.model), found.model["x"].get_value()
    assert len(observed) == 100 and observed.max() < 1
    places = [np.flatnonzero((data["x"] == row).all(axis=1)).tolist() for row in rows]
    if public:
        assert np.concatenate(places).tolist() == sorted({place for (place,) in places})
    else:
        assert not any(places)


def read_counts(monkeypatch, data, ledger):
    """Numbers of claims at each time that these records are read."""
    seen = []
    for name in ("blocks", "take"):
        real = getattr(Records, name)

        def reading(self, *arguments, real=real):
            if self is data:
                seen.append(len(ledger.claims()))
            return real(self, *arguments)

        monkeypatch.setattr(Records, name, reading)
    return seen


@pytest.mark.slow
def test_nothing_is_read_before_it_is_paid_for(monkeypatch, tmp_path):
    """What is compiled before is compiled on made-up records; nor is anything read for a second time."""
    ledger = dp.Ledger(tmp_path / "a.ledger", epsilon=10.0, delta=1e-4)
    assert simulator().simulated.n_records == N  # so few public rows are all simulated
    seen = read_counts(monkeypatch, simulator().likelihood.records, ledger)
    budget = dp.PrivacyBudget(5.0, 1e-5, chains=1, ledger=ledger)
    scores = dp.private_scores(simulator(), budget=budget, random_seed=1)
    n_reads = len(seen)
    assert n_reads == len(scores.releases) + 1 and min(seen) >= 1  # each sum, and the fit check
    assert scores.n_records == N
    options = {"budget": dp.PrivacyBudget(5.0, 1e-5, chains=1, ledger=ledger), "clip_bound": 2.0}
    step = dp.DPPenalty(proposal=dp.RandomWalk(0.02), likelihood=simulator().likelihood, model=simulator().model, **options)  # fmt: skip
    assert len(seen) == n_reads
    before = len(ledger.claims())
    dp.sample(
        step=step, draws=3, random_seed=1, progressbar=False, compute_convergence_checks=False
    )
    assert len(seen) == n_reads + 3 and min(seen[n_reads:]) > before  # once for each decision


@pytest.mark.slow
def test_parallel_chains_read_for_themselves(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {f"x{k}": columns()["x"][:, k] for k in range(D)} | {"y": columns()["y"]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=300)
    arguments = {"x": [f"x{k}" for k in range(D)], "y": "y"}
    data = Records.from_parquet(tmp_path / "a.parquet", arguments=arguments, block_rows=100)
    found = dp.Simulator(fed(logistic, xy()), data=data, covariates="public")
    step = dp.DPPenalty(
        budget=dp.PrivacyBudget(80.0, 1e-5, chains=2), clip_bound=2.0, proposal=dp.RandomWalk(0.05),
        likelihood=found.likelihood, model=found.model,
    )  # fmt: skip
    idata = dp.sample(step=step, draws=200, cores=2, random_seed=1, progressbar=False, compute_convergence_checks=False)  # fmt: skip
    one, other = idata["posterior"]["slope"].to_numpy()
    assert len(np.unique(one[:, 0])) > 3 and not np.array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, options",
    [
        (dp.DPFastMH, {"proposal": dp.RandomWalk(0.02), "batch_rate": 50.0}),
        (dp.DPHMC, {"step_size": 0.01, "n_leapfrog": 3, "gradient_clip_bound": 2.0, "gradient_noise_multiplier": 5.0}),
    ],
)  # fmt: skip
def test_steps_on_blocks(kind, options):
    budget = dp.PrivacyBudget(50.0, 1e-5, chains=1)
    known = {"likelihood": simulator().likelihood, "model": simulator().model}
    step = kind(budget=budget, clip_bound=2.0, **known, **options)
    idata = dp.sample(step=step, random_seed=1, progressbar=False, compute_convergence_checks=False)
    assert np.isfinite(idata["posterior"]["slope"].to_numpy()).all()
    assert 0 < budget.spent() <= 50.0


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"model": lambda x, y: 3}, TypeError, "must be a pm.Model, got a function"),
        ({"records": np.arange(N)}, ValueError, "each row is a record"),
        ({"covariates": dp.Ranges(x=(0, 1))}, ValueError, "private_stand_in"),
        ({"covariates": None}, ValueError, "covariates"),
    ],
)
def test_what_does_not_go_with_blocks(arguments, error, message):
    data = Records(xy())
    arguments = {
        "model": fed(logistic, xy()),
        "covariates": "public",
        "compile_kwargs": MODE,
    } | arguments
    with pytest.raises(error, match=message):
        dp.Simulator(arguments.pop("model"), data=data, **arguments)
