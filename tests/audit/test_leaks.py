"""Files that are published, and all that is printed on the way: no private value is in them.

The search is as good as what it finds: what pm.sample returns, and values hidden in what is published.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from pymc_dp import release
from tests.audit.audited_samplers import (
    budget_for,
    build,
    everything_logged,
    listened,
    sample,
)

__all__ = ["everything_logged"]  # a fixture

# ---------------------------------------------------------------- searching for private values


class Secrets:
    """Private values of each kind, and where in a text or a file one of them is found."""

    def __init__(self, floats, integers, names):
        self.floats, self.integers, self.names = np.array(floats), np.array(integers), list(names)

    def in_text(self, text):
        """Kinds found in what was printed: numbers in full, or rounded as messages do."""
        written = {f"{v:{form}}" for v in self.floats for form in ("", ".8g", ".6g")}
        written |= {str(np.float32(v)) for v in self.floats}
        kinds = {"float": written, "integer": map(str, self.integers), "name": self.names}
        return {kind for kind, forms in kinds.items() if any(form in text for form in forms)}

    def in_bytes(self, raw):
        """Kinds found as text, or in binary. Single precision in pairs: four bytes are found by chance."""
        found = self.in_text(raw.decode("latin1"))
        binary = {
            "float": [v.tobytes() for v in self.floats],
            "float32": [v.tobytes() for v in _pairs(self.floats.astype("f4"))],
            "integer": [v.tobytes() for v in self.integers.astype("i8")],
            "int32": [v.tobytes() for v in _pairs(self.integers.astype("i4"))],
        }
        return found | {kind for kind, forms in binary.items() if any(f in raw for f in forms)}

    def in_values(self, values):
        """Kinds found in an array, whatever it was compressed to."""
        values = np.asarray(values)
        if values.dtype.kind not in "fiu":
            return self.in_text(" ".join(map(str, values.ravel())))
        single, numbers = self.floats.astype("f4"), values.ravel().astype(float)
        kinds = {"float": self.floats, "float32": single, "integer": self.integers}
        return {kind for kind, those in kinds.items() if np.isin(those.astype(float), numbers).any()}  # fmt: skip

    def in_file(self, path, engine=None):
        """Kinds found in a saved result: every byte of it, and every variable, coordinate and attribute."""
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        found = set().union(*(self.in_bytes(p.read_bytes()) for p in files))
        with xr.open_datatree(path, engine=engine) as tree:
            for node in tree.subtree:
                for holder in (node, *node.variables.values()):
                    found |= self.in_text(" ".join(map(str, holder.attrs.items())))
                for variable in node.variables.values():
                    found |= self.in_values(variable.values)
        return found


def _pairs(values):
    return np.lib.stride_tricks.sliding_window_view(values, 2)


KINDS = {"float", "integer", "name"}
N = 60


def few(value, level):
    """Cheap to compile."""
    return -((1e-9 * value - level) ** 2)


@pytest.fixture(scope="module")
def ward():
    """A model whose data are found if they are anywhere: measurements, counts, covariates and names of patients."""
    rng = np.random.default_rng(41)
    age, weight = rng.normal(50, 12, N) + 1e-3 / 7, rng.normal(70, 9, N) + 1e-3 / 7
    visits = rng.integers(2 * 10**8, 10**9, N)
    names = [f"{first}-{second:x}" for first, second in zip("ABCDEF" * 10, rng.integers(2**40, 2**44, N), strict=True)]  # fmt: skip
    with pm.Model(coords={"person": names, "term": ["level", "age"]}) as model:
        age_data = pm.Data("age", age, dims="person")
        beta = pm.Normal("beta", 0, 10, dims="term")
        mean = pm.Deterministic("mean", beta[0] + beta[1] * age_data, dims="person")
        weight_data, visits_data = pm.Data("weight_data", weight), pm.Data("visits_data", visits)
        pm.Normal("weight", mean, 9.0, observed=weight_data, dims="person")
        pm.CustomDist("visits", beta[0], logp=few, observed=visits_data, dims="person")
        pm.Deterministic("residual", weight - mean, dims="person")
        pm.Deterministic("heaviest", weight_data.max() + 0 * beta[0])
        pm.Deterministic("busiest", visits_data.max() + 0 * pm.math.floor(beta[0]).astype("int64"))
        pm.Deterministic("odds", pm.math.exp(beta / 100), dims="term")
    return model, Secrets([*age, *weight], visits, names)


@pytest.mark.parametrize(
    "name",
    ["penalty", *(pytest.param(n, marks=pytest.mark.slow) for n in ("DP-Fast MH", "HMC", "SGHMC"))],
)
def test_released_files_and_output_hold_nothing_private(
    name, ward, tmp_path, everything_logged, capfd
):
    model, secrets = ward
    budget = budget_for()
    step = build(name, model, budget, "ward")

    def whole_run():
        idata = sample(
            model, step, budget, draws=150, progressbar=True, compute_convergence_checks=True
        )
        public = release(idata, model, budget)
        print(public, budget, budget.report(), public.posterior, step)
        return idata, public

    (idata, public), said = listened(whole_run, everything_logged, capfd)
    assert secrets.in_text(said) == set()
    assert type(step).__name__ in said and "Draw" in said  # the log and the progress bar were heard
    idata.to_netcdf(str(tmp_path / "raw.nc"))
    assert secrets.in_file(tmp_path / "raw.nc") >= KINDS
    assert secrets.in_text(str(idata.posterior)) >= {"name"}  # a listener who is shown too much
    public.to_netcdf(str(tmp_path / "public.nc"))
    assert secrets.in_file(tmp_path / "public.nc") == set()
    assert set(public.posterior.data_vars) == {"beta", "odds"}


def as_tree(idata):
    """ArviZ 0.x does not write the present version of Zarr by itself."""
    return idata.to_datatree() if hasattr(idata, "to_datatree") else idata


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:The data type", "ignore:Consolidated metadata"
)  # say that formats may change
def test_released_zarr_holds_nothing_private(ward, tmp_path):
    pytest.importorskip("zarr", reason="zarr, which to_zarr needs, is not installed here")
    model, secrets = ward
    budget = budget_for()
    idata = sample(model, build("penalty", model, budget, "ward"), budget, draws=50)
    as_tree(idata).to_zarr(str(tmp_path / "raw.zarr"))
    assert secrets.in_file(tmp_path / "raw.zarr", "zarr") >= KINDS
    as_tree(release(idata, model, budget)).to_zarr(str(tmp_path / "public.zarr"))
    assert secrets.in_file(tmp_path / "public.zarr", "zarr") == set()


def _in_a_coordinate(public, secrets):
    return public.posterior.assign_coords(draw=secrets.floats[: public.posterior.sizes["draw"]])


def as_dataset(group):
    """Of either generation of ArviZ."""
    return group.to_dataset() if hasattr(group, "to_dataset") else group


HIDDEN = {
    "attribute": ("float", lambda p, s: p.posterior.assign_attrs(note=f"mean age near {s.floats[3]:.6g}")),
    "attribute of a variable": ("name", lambda p, s: p.posterior.assign(b=p.posterior.beta.assign_attrs(by=s.names[5]))),
    "coordinate": ("float", _in_a_coordinate),
    "single precision": ("float32", lambda p, s: p.posterior.assign(z=("row", s.floats[:1].astype("f4")))),
    "integers": ("integer", lambda p, s: p.posterior.assign(z=("row", s.integers[7:8].astype("i4")))),
    "text of numbers": ("integer", lambda p, s: p.posterior.assign(z=("row", [f"<{s.integers[7]}>"]))),
}  # fmt: skip


@pytest.mark.parametrize("place", HIDDEN)
def test_private_values_hidden_in_a_file_are_found(place, ward, tmp_path):
    """Control: one value in an otherwise clean, compressed file."""
    model, secrets = ward
    budget = budget_for()
    idata = sample(model, build("penalty", model, budget, "ward"), budget, draws=20)
    kind, hide = HIDDEN[place]
    public = release(idata, model, budget)
    planted = hide(SimpleNamespace(posterior=as_dataset(public.posterior)), secrets)
    packed = {v: {"zlib": True} for v, x in planted.variables.items() if x.dtype.kind in "fi"}
    planted.to_netcdf(tmp_path / "planted.nc", encoding=packed)
    assert kind in secrets.in_file(tmp_path / "planted.nc")
