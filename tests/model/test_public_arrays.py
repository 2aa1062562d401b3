"""Which stored arrays of a model hold no data."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse

from pytensor.graph.traversal import ancestors

from pymc_dp.model.graphs.data_variables import is_array_root
from pymc_dp.model.graphs.public_arrays import PublicArrays, is_structural
from pymc_dp.model.simulation import SimulatedRecords

PATTERNS = {
    "a scalar": np.array(3.7),
    "one entry": np.array([3.7]),
    "nothing": np.zeros((0, 3)),
    "all equal": np.full((4, 3), 2.5),
    "no number at all": np.full(3, np.nan),
    "arange": np.arange(7),
    "arange, with a step": np.arange(3, 30, 4),
    "arange, backwards": np.arange(7)[::-1],
    "arange, as a column": np.arange(7)[:, None],
    "unsigned": np.arange(7, dtype="u8")[::-1],
    "two places": np.array([1, 0]),
    "rows of a triangle": np.tril_indices(4)[0],
    "columns of a triangle": np.tril_indices(4)[1],
    "rows of an upper triangle": np.triu_indices(5)[0],
    "columns of an upper triangle": np.triu_indices(5)[1],
    "strict lower triangle": np.tril_indices(5, -1)[0],
    "strict upper triangle": np.triu_indices(5, 1)[1],
    "the diagonal of a packed triangle": np.arange(1, 6).cumsum() - 1,
    "the diagonal of a packed upper triangle": np.arange(2, 7)[::-1].cumsum() - 5 - 1,
    "identity": np.eye(4),
    "a scaled identity": 3.0 * np.eye(4) + 0.5,
    "a boolean identity": np.eye(3, dtype=bool),
}
DATA = {
    "numbers": np.array([0.3, 0.1, 0.7]),
    "two ages": np.array([37, 41]),
    "two ages, a year apart": np.array([37, 38]),
    "groups": np.array([0, 0, 1, 2, 1]),
    "yes and no": np.array([True, False, True]),
    "evenly spaced measurements": np.array([0.5, 1.0, 1.5]),
    "one record differs": np.array([1.0, 1.0, 1.0, 2.0]),
    "a diagonal matrix": np.diag([1.0, 2.0, 3.0]),
    "a correlation": np.array([[1.0, 0.3, 0.2], [0.3, 1.0, 0.3], [0.2, 0.3, 1.0]]),
    "not a number here and there": np.array([np.nan, 1.0, np.nan]),
    "names": np.array(["Ann", "Bob"]),
    "a sparse matrix": scipy.sparse.csr_matrix(np.array([[0.3, 0.0], [0.0, 0.7]])),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_made_without_data(name):
    assert is_structural(PATTERNS[name])


@pytest.mark.parametrize("name", DATA)
def test_data_are_not_patterns(name):
    assert not is_structural(DATA[name])


@pytest.fixture
def model():
    rng = np.random.default_rng(1)
    x, z = rng.normal(size=(2, 20))
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        mu = a * pm.Data("x", x) + b * pt.constant(z, name="z")
        pm.Deterministic("again", a * x)
        pm.Normal("y", mu, 1, observed=pm.Data("y_data", rng.normal(size=20)))
    model.x, model.z = x, z
    return model


def roots_of(variable):
    return [v for v in ancestors([variable]) if is_array_root(v) and v.ndim]


def test_declared_by_name(model):
    public = PublicArrays(model, ["x", "z"])
    assert public.descriptions == ("x", "z")
    assert model["x"] in public
    assert model["y_data"] not in public
    assert model["a"] not in public
    # The same values in another container.
    (constant,) = [v for v in roots_of(model["again"]) if v.type.shape == (20,)]
    assert constant is not model["x"] and constant not in public


def test_a_declared_array_is_known_by_its_memory(model):
    """And by its values, if it has no axis as long as the data: no private array has to be compared."""
    matrix, one = np.arange(40.0).reshape(20, 2), np.ones(3)
    public = PublicArrays(model, [model.x, matrix[:, 0], one, matrix[:5, 1]])
    assert public.descriptions[::2] == ("an array of shape (20,)", "an array of shape (3,)")
    for array in (model.x, model.x[::-1], model.x[3:], matrix[:, 0], np.ones(3)):
        assert pt.constant(array) in public
    for array in (model.x.copy(), matrix, matrix[:, 1], matrix[:, 0].copy(), np.ones(4)):
        assert pt.constant(array) not in public
    assert model["x"] not in public  # pm.Data has a copy
    assert pt.constant(model.z) not in public
    assert not any(str(v)[:8] in text for v in model.x for text in public.descriptions)


def test_nothing_declared(model):
    public = PublicArrays(model, [])
    assert public.descriptions == () and model["x"] not in public


@pytest.mark.parametrize("name", ["nothing", "y", "again"])
def test_unknown_names_are_refused(model, name):
    with pytest.raises(ValueError, match=f"public= names '{name}'.*It has: a, .*x, y_data, z"):
        PublicArrays(model, [name])


def test_what_is_observed_is_not_public(model):
    with pytest.raises(ValueError, match="y_data: the values of an observed variable"):
        PublicArrays(model, ["x", "y_data"])
    with pytest.raises(ValueError, match=r"shape .20,.: the values of an observed variable"):
        PublicArrays(model, [model["y_data"].get_value(borrow=True)])
    declared = model["y_data"].get_value()
    assert model["y_data"] not in PublicArrays(model, [declared])


@pytest.mark.parametrize("last", [0.0, 1.0])
def test_refusals_do_not_depend_on_equal_values(last):
    """A declared array, or a public covariate, whose values are those of the outcome, or all of them but one."""
    t = np.random.default_rng(3).normal(size=30)
    y = t.copy()
    y[-1] += last
    with pm.Model() as model:
        mu = pm.Normal("a") * pt.constant(t) + pm.Normal("b") * pt.constant(y.copy())
        pm.Normal("y", mu, 1, observed=y)
    for public in ([t], [t, y]):
        simulated = SimulatedRecords(model, public=public, public_covariates=True)
        assert simulated.n_records == 30 and len(PublicArrays(model, public).descriptions) == len(
            public
        )
    with pytest.raises(ValueError, match="covariates=stand_in_model"):
        SimulatedRecords(model, public=[t])  # a copy of the outcome is private
