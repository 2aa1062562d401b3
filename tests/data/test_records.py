"""Records: the same blocks, pieces, rows and digests from every source."""

import hashlib
import pickle
import tempfile

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dp import Records
from pymc_dp.data import RecordSource
from pymc_dp.data.in_memory import InMemory
from pymc_dp.model import data_keys
from tests.data.record_tables import (
    ARGUMENTS,
    assert_same,
    columns_of,
    expected,
    joined,
    write_files,
)

N = 103


def new(text):
    return hashlib.blake2b(text.encode(), key=data_keys._SECRET)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The same records from all sources, as a function of the number of rows of a block."""
    columns = columns_of(N)
    folder = tmp_path_factory.mktemp("sources")
    write_files(folder / "several", columns, [40, 0, 50, 13], row_group_size=17)
    single = write_files(folder / "single", columns) / "000.parquet"
    mapped = {}
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
        mapped[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
    halves = [{n: c[:50] for n, c in columns.items()}, {n: c[50:] for n, c in columns.items()}]
    nullable = {n: pd.array(c) for n, c in columns.items()}
    arrow = {n: pd.array(c, dtype=pd.ArrowDtype(pa.array(c).type)) for n, c in columns.items()}
    tables = {
        "arrays": columns,
        "mapped": mapped,
        "lists of arrays": {n: c.tolist() if n == "b" else c for n, c in columns.items()},
        "pandas": pd.DataFrame(columns),
        "nullable": pd.DataFrame(nullable),
        "pandas of arrow": pd.DataFrame(arrow),
        "polars": pl.DataFrame(columns),
        "chunks of polars": pl.concat([pl.DataFrame(half) for half in halves], rechunk=False),
        "arrow": pa.table(columns),
        "chunks": pa.concat_tables([pa.table(half) for half in halves]),
        "batch": pa.RecordBatch.from_pydict(columns),
        "reader": pa.table(columns).to_reader,
        "source": InMemory(columns),
        "duckdb": lambda: duckdb.from_arrow(pa.table(columns)),
        "series": {n: pl.Series(c) if n == "a" else pd.Series(c) for n, c in columns.items()},
    }
    files = {
        "folder": folder / "several",
        "list": sorted((folder / "several").iterdir()),
        "file": str(single),
    }

    def make(kind, **options):
        if kind in files:
            return Records.from_parquet(files[kind], arguments=ARGUMENTS, **options)
        table = tables[kind]() if callable(tables[kind]) else tables[kind]
        return Records(table, arguments=ARGUMENTS, **options)

    make.kinds = [*tables, *files]
    return make


KINDS = ["arrays", "mapped", "pandas", "polars", "chunks", "folder", "file"]
WANTED = expected(columns_of(N))


def test_all_sources(sources):
    digests = set()
    for kind in sources.kinds:
        records = sources(kind, block_rows=20)
        assert isinstance(records._source, RecordSource)
        assert records.n_records == N and records.block_rows == 20
        kinds = {n: (a.dtype, a.shape[1:]) for n, a in WANTED.items()}
        assert records.layout == kinds, kind
        blocks = list(records.blocks())
        lengths = [len(block["y"]) for block in blocks]
        assert max(lengths) <= 20 and (kind in ("folder", "list") or lengths == [20] * 5 + [3])
        assert_same(joined(blocks), WANTED)
        digests.add(tuple(records.digests(new).values()))
    assert digests == {tuple(map(data_keys._key, WANTED.values()))}


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    block_rows=st.integers(1, N + 5),
    n=st.integers(1, N),
    data=st.data(),
)
def test_any_blocks_and_pieces(sources, kind, block_rows, n, data):
    records = sources(kind, block_rows=block_rows)
    assert_same(joined(records.blocks()), WANTED)
    pieces = records.split(n)
    assert len(pieces) == n and all(piece.n_records for piece in pieces)
    again = pickle.loads(pickle.dumps(pieces)) if data.draw(st.booleans()) else pieces
    assert_same(joined(block for piece in again for block in piece.blocks()), WANTED)
    k = data.draw(st.integers(0, n - 1))
    begin = sum(piece.n_records for piece in pieces[:k])
    index = np.array(data.draw(st.lists(st.integers(0, again[k].n_records - 1))), dtype=int)
    assert_same(again[k].take(index), {name: a[begin + index] for name, a in WANTED.items()})


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=4).filter(any),
    row_group_size=st.integers(1, 40),
    block_rows=st.integers(1, 50),
    data=st.data(),
)
def test_any_files(lengths, row_group_size, block_rows, data):
    columns = columns_of(sum(lengths))
    n = min(data.draw(st.integers(1, 6) | st.integers(1, 120)), sum(lengths))
    index = np.array(data.draw(st.lists(st.integers(0, sum(lengths) - 1))), dtype=int)
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), columns, lengths, row_group_size)
        records = Records.from_parquet(folder, arguments=ARGUMENTS, block_rows=block_rows)
        pieces = records.split(n)
        found = joined(block for piece in pieces for block in piece.blocks())
        assert_same(found, expected(columns))
        assert_same(records.take(index), {k: a[index] for k, a in expected(columns).items()})
        sizes = [piece.n_records for piece in pieces]
        if n <= (n_groups := len(records._source._groups)):
            assert sum(len(piece._source._groups) for piece in pieces) == n_groups
        assert len(sizes) == n and min(sizes) > 0


def test_default_arguments_and_rows():
    records = Records({"x": np.zeros((5, 3), np.float32), "k": np.zeros(5, np.uint16)})
    assert records.layout == {
        "x": (np.dtype(np.float32), (3,)),
        "k": (np.dtype(np.uint16), ()),
    }
    assert records.block_rows == 2**21 // 14 // 64 * 64
    assert Records({"wide": np.zeros((2, 10**6))}).block_rows == 64
    assert Records({0: [1.0]}).layout.keys() == {"0"}
    nan = Records(pd.DataFrame({"x": [np.nan, 1.0]}))
    assert np.isnan(nan.take([0])["x"]).all()  # a number in pandas, too


@pytest.mark.parametrize(
    "types, wanted",
    [("ff", "f"), ("fd", "d"), ("dd", "d"), ("f", "f"), ("fi", "d"), ("e", "d"), ("?", "d"), ("Q", "d")],
)  # fmt: skip
def test_types_of_matrices(tmp_path, types, wanted):
    columns = {f"x{k}": np.ones(3, kind) for k, kind in enumerate(types)}
    path, arguments = write_files(tmp_path, columns), {"X": tuple(columns)}
    for records in (Records(columns, arguments=arguments), Records.from_parquet(path, arguments=arguments)):  # fmt: skip
        assert records.layout == {"X": (np.dtype(wanted), (len(types),))}
        assert_same(joined(records.blocks()), {"X": np.ones((3, len(types)), wanted)})


def test_blocks_of_memory_are_views():
    columns = {"x": np.zeros((6, 2)), "fortran": np.zeros((6, 2), order="F"), "y": np.zeros(6)}
    for block in Records(columns, block_rows=4).blocks():
        assert np.shares_memory(block["x"], columns["x"])
        assert np.shares_memory(block["y"], columns["y"])
        assert not np.shares_memory(block["fortran"], columns["fortran"])
        assert all(type(array) is np.ndarray and array.flags.c_contiguous for array in block.values())  # fmt: skip


def test_other_byte_order():
    column = np.arange(9.0)
    records = Records({"x": column.astype(">f8")}, block_rows=4)
    assert_same(joined(records.blocks()), {"x": column})
    assert records.digests(new) == Records({"x": column}).digests(new)


@pytest.fixture
def reads(monkeypatch):
    """Row group, columns and size of each batch that pyarrow reads."""
    found, real = [], pq.ParquetFile.iter_batches

    def watched(self, size, row_groups, columns, **options):
        for batch in real(self, size, row_groups=row_groups, columns=columns, **options):
            found.append((*row_groups, *batch.schema.names, batch.num_rows))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    return found


def test_take_reads_what_it_needs(tmp_path, reads):
    columns = columns_of(100)
    write_files(tmp_path, columns, [50, 50], row_group_size=10)
    records = Records.from_parquet(tmp_path, arguments={"x": "a"}, block_rows=5)
    found = records.take([97, 3, 97, 12])
    assert reads == [(0, "a", 10), (1, "a", 10), (4, "a", 10)]
    np.testing.assert_array_equal(found["x"], columns["a"][[97, 3, 97, 12]])


def test_pieces_of_a_row_group_read_no_more_than_they_need(tmp_path, reads):
    write_files(tmp_path, columns_of(100))
    first, last = Records.from_parquet(tmp_path, arguments={"x": "a"}, block_rows=10).split(2)
    assert len(list(first.blocks())) == len(list(last.blocks())) == 5
    assert len(reads) == 5 + 10


def test_only_columns_that_are_used_are_read(tmp_path, reads):
    columns = {"a.b": np.arange(3.0), "text": np.array(["u", "v", "w"])}
    write_files(tmp_path, columns)
    records = Records.from_parquet(tmp_path, arguments={"x": "a.b"})
    assert_same(joined(records.blocks()), {"x": columns["a.b"]})
    assert reads == [(0, "a.b", 3)]
    assert_same(joined(Records(columns, arguments={"x": "a.b"}).blocks()), {"x": columns["a.b"]})


@pytest.mark.parametrize("view", ["[:]", "[5:, 1]", "[::-1]", "[3:, ::2]", "['u']", ".T[2:]"])
def test_mapped_arrays_are_pickled_by_name(tmp_path, view):
    dtype = [("k", np.int8), ("u", np.float64)] if view == "['u']" else np.float64
    shape = (20000,) if view == "['u']" else (100, 200)
    whole = np.memmap(tmp_path / "x", dtype, "w+", offset=5000, shape=shape)
    whole[...] = np.arange(whole.size).reshape(shape)
    array = eval(f"whole{view}")
    for piece in Records({"x": array}).split(3):
        stored = pickle.dumps(piece)
        assert len(stored) < 2000
        again = pickle.loads(stored)
        assert_same(joined(again.blocks()), joined(piece.blocks()))
        assert_same(joined(pickle.loads(pickle.dumps(again)).blocks()), joined(piece.blocks()))


def test_changes_of_a_copied_map_are_pickled(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(5))
    array = np.load(tmp_path / "x.npy", mmap_mode="c")
    array[2] = 7
    again = pickle.loads(pickle.dumps(Records({"x": array})))
    assert again.take([2])["x"] == 7


def test_pieces_are_found_from_other_folders(tmp_path, monkeypatch):
    write_files(tmp_path / "files", columns_of(9))
    monkeypatch.chdir(tmp_path)
    stored = pickle.dumps(Records.from_parquet("files").split(3))
    monkeypatch.chdir("/")
    assert (
        len(joined(block for piece in pickle.loads(stored) for block in piece.blocks())["y"]) == 9
    )


def test_pickled_pieces_have_the_rows_of_their_own_only():
    pieces = Records({"x": np.random.default_rng(0).normal(size=10000)}).split(10)
    assert len(pickle.dumps(pieces[0])) < 10000


def test_one_line(sources):
    shown = "X: float64 (2,), y: int8, s: float32 (1,), flag: bool; blocks of 64 rows"
    assert repr(sources("arrays", block_rows=64)) == f"Records(103 records; {shown}, in memory)"
    assert (
        repr(sources("folder", block_rows=64)) == f"Records(103 records; {shown}, Parquet, 3 files)"
    )
    many = repr(Records({f"x{k}": [1.5] for k in range(12)}))
    assert "x7: float64, 4 more;" in many and "1.5" not in many
