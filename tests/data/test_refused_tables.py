"""What is refused: errors name what was found and what to do, and show no values."""

import builtins
import datetime

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pymc_dp import Records
from tests.data.record_tables import write_files

SECRET = 7654321
WORD = "Mrs-Secret"


def refusal(make, kind, *parts):
    with pytest.raises(kind) as caught:
        make()
    text = str(caught.value)
    for part in parts:
        assert part in text, text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert str(SECRET) not in text and WORD not in text and "Secret" not in text
    return text


DAY = datetime.date(2001, 2, 3)
NOT_NUMBERS = {
    "text": ([WORD], "str_"),
    "bytes": (np.array([WORD.encode()]), "bytes_"),
    "objects": (np.array([{WORD: SECRET}], dtype=object), "object_"),
    "none": ([SECRET, None], "object_"),
    "dates": (np.array([DAY], "datetime64[D]"), "datetime64"),
    "complex": (np.array([SECRET * 1j]), "complex128"),
    "wide": (np.array([SECRET], np.longdouble), "longdouble"),
    "fields": (np.array([(SECRET,)], dtype=[(WORD, int)]), "void"),
    "pandas text": (pd.Series([WORD]), "string"),
    "pandas categories": (pd.Series([WORD], dtype="category"), "dictionary<values="),
    "pandas zones": (pd.Series(pd.to_datetime([DAY]).tz_localize("UTC")), "timestamp"),
    "pandas of arrow": (pd.Series([WORD], dtype=pd.ArrowDtype(pa.string())), "string"),
    "polars text": (pl.Series([WORD]), "string_view"),
    "polars categories": (pl.Series([WORD], dtype=pl.Enum([WORD])), "dictionary<values="),
    "polars dates": (pl.Series([DAY]), "date32"),
    "polars lists": (pl.Series([[SECRET]]), "large_list"),
    "polars arrays": (pl.Series([[SECRET, None]], dtype=pl.Array(pl.Int64, 2)), "fixed_size_list"),
    "polars decimals": (pl.Series([SECRET]).cast(pl.Decimal(20, 1)), "decimal128"),
    "arrow text": (pa.array([WORD]), "string"),
    "arrow categories": (pa.array([WORD]).dictionary_encode(), "dictionary<values=string"),
    "arrow dates": (pa.array([DAY]), "date32"),
    "arrow decimals": (pa.array([SECRET]).cast(pa.decimal128(20, 1)), "decimal128"),
    "arrow nulls": (pa.array([None, None]), "null"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_NUMBERS)
def test_columns_that_are_not_numbers(case, tmp_path):
    column, kind = NOT_NUMBERS[case]
    parts = ["Column 'job' must hold numbers, not the type", kind, "codes of a public list", "arguments="]  # fmt: skip
    refusal(lambda: Records({"job": column}), ValueError, *parts)
    if case.startswith("arrow"):
        pq.write_table(pa.table({"job": column}), tmp_path / "x.parquet")
        refusal(lambda: Records.from_parquet(tmp_path), ValueError, *parts)


MISSING = {
    "masked": np.ma.masked_array([SECRET, 1], [False, True]),
    "pandas": pd.Series([SECRET, None], dtype="Int64"),
    "pandas of arrow": pd.Series([SECRET, None], dtype=pd.ArrowDtype(pa.float64())),
    "polars": pl.Series([SECRET, None]),
    "arrow": pa.array([SECRET, None]),
    "chunks": pa.chunked_array([[SECRET], [None]], pa.int64()),
}


@pytest.mark.parametrize("case", MISSING)
def test_missing_values(case, tmp_path):
    parts = ["Column 'pay' has missing values", "public value", "arguments="]
    refusal(lambda: Records({"pay": MISSING[case]}), ValueError, *parts)
    if case in ("arrow", "chunks"):
        write_files(tmp_path, {"pay": MISSING[case], "rest": pa.array([1, 2])})
        refusal(lambda: [*Records.from_parquet(tmp_path).blocks()], ValueError, *parts)
        assert Records.from_parquet(tmp_path, arguments={"x": "rest"}).n_records == 2


def test_masks_without_masked_values_are_accepted():
    assert Records({"x": np.ma.masked_array([1, 2], [False, False])}).n_records == 2


def two(**columns):
    return {"x": [1, SECRET], **columns}


@pytest.mark.parametrize(
    "columns, options, kind, parts",
    [
        (two(y=[1]), {}, ValueError, ["same number of rows", "x has 2, y has 1"]),
        ({}, {}, ValueError, ["no columns", "one at least"]),
        ({"x": []}, {}, ValueError, ["no rows", "one record at least"]),
        ({"x": SECRET}, {}, ValueError, ["'x' has the shape ()", "per record"]),
        ({"x": np.zeros((3, 0))}, {}, ValueError, ["'x' has the shape (3, 0)"]),
        ({"x": [[1, SECRET], [1]]}, {}, ValueError, ["'x' is not an array", "make it one"]),
        ([SECRET], {}, TypeError, ["map names to arrays", "got list"]),
        (pa.array([SECRET]), {}, TypeError, ["map names to arrays", "got Int64Array"]),
        (pd.DataFrame({"x": pd.arrays.SparseArray([0, SECRET])}), {}, ValueError, ["'x' cannot be read by Arrow from a Series (ArrowTypeError"]),
        (duckdb.sql(f"select '{WORD}'::text as w").select("w::int as x"), {}, ValueError, ["The table cannot be read by Arrow from a DuckDBPyRelation"]),
        (pl.LazyFrame({"x": [SECRET]}), {}, TypeError, ["got LazyFrame"]),
        ({0: [1], "0": [SECRET]}, {}, ValueError, ["the name '0'", "rename"]),
        (pd.DataFrame([[1, SECRET]], columns=["x", "x"]), {}, ValueError, ["the name 'x'", "rename"]),
        (pa.table([[1], [SECRET]], names=["x", "x"]), {}, ValueError, ["the name 'x'", "rename"]),
        (two(), {"arguments": {"X": ["x", "z"]}}, ValueError, ["column 'z'", "the columns are x."]),
        (two(), {"arguments": {"X": []}}, TypeError, ["must map each name to a column or a list"]),
        (two(), {"arguments": {}}, TypeError, ["such as {'X': ['x1', 'x2'], 'y': 'y'}"]),
        (two(), {"arguments": ["x"]}, TypeError, ["such as {'X': ['x1', 'x2'], 'y': 'y'}"]),
        (two(), {"arguments": pd.DataFrame(two())}, TypeError, ["arguments must map"]),
        (two(), {"arguments": {"x": [SECRET]}}, TypeError, ["arguments must map"]),
        (two(), {"arguments": {"x": SECRET, "y": "x"}}, TypeError, ["arguments must map"]),
        (two(m=np.zeros((2, 3))), {"arguments": {"X": ["x", "m"]}}, ValueError, ["'m' has rows of shape (3,)", "'X'"]),
        (two(), {"block_rows": 0}, ValueError, ["block_rows must be at least 1"]),
        (two(), {"block_rows": 2.5}, TypeError, ["block_rows must be a whole number"]),
    ],
)  # fmt: skip
def test_tables(columns, options, kind, parts):
    refusal(lambda: Records(columns, **options), kind, *parts)


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize("index", [[-1], [2], [0.5], [[0]], [True, False], 1, ["a"]])
def test_numbers_of_rows(index, parquet, tmp_path):
    columns = two()
    records = Records.from_parquet(write_files(tmp_path, columns)) if parquet else Records(columns)
    refusal(lambda: records.take(index), IndexError, "whole numbers from 0 to 1")


def test_numbers_of_pieces():
    records = Records(two())
    refusal(lambda: records.split(3), ValueError, "2 records cannot be split into 3", "fewer")
    refusal(lambda: records.split(0), ValueError, "n must be at least 1")
    refusal(lambda: records.split("a"), TypeError, "n must be a whole number")


def test_files(tmp_path):
    def read(*paths, **options):
        return lambda: Records.from_parquet(list(paths), **options)

    good = write_files(tmp_path / "good", two()) / "000.parquet"
    other = write_files(tmp_path / "other", {"x": [0.5, SECRET]}) / "000.parquet"
    more = write_files(tmp_path / "more", two(y=[1, 2])) / "000.parquet"
    none = write_files(tmp_path / "none", {"x": np.zeros(0)}, row_group_size=1) / "000.parquet"
    refusal(read(good, other), ValueError, f"{other} and {good}", "'x' is of type double and int64")
    refusal(read(good, more), ValueError, "'y' is of type int64 and none", "one schema")
    assert read(more, good, arguments={"x": "x"})().n_records == 4
    refusal(read(good, other, arguments={"x": "x"}), ValueError, "double and int64")
    refusal(read(none), ValueError, "no rows")
    refusal(read(tmp_path / "gone"), FileNotFoundError, "gone does not exist")
    refusal(read(), FileNotFoundError, "no Parquet files")
    refusal(read(good, arguments={"x": "z"}), ValueError, "column 'z'", "the columns are x.")
    refusal(lambda: Records.from_parquet(tmp_path), ValueError, "good is a folder among", "list")
    twice = pa.table([[1], [SECRET]], names=["x", "x"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    refusal(read(tmp_path / "twice.parquet"), ValueError, "the name 'x'")
    refusal(read(good, tmp_path / "twice.parquet"), ValueError, "the name 'x'")
    (tmp_path / "text.parquet").write_text(WORD * 100)
    refusal(read(tmp_path / "text.parquet"), OSError, "text.parquet cannot be read as Parquet")


def test_other_files_of_a_folder_are_not_left_out(tmp_path):
    write_files(tmp_path, two())
    for name in ("_SUCCESS", ".000.crc"):
        (tmp_path / name).touch()
    assert Records.from_parquet(tmp_path).n_records == 2
    (tmp_path / "note.txt").touch()
    refusal(lambda: Records.from_parquet(tmp_path), OSError, "note.txt cannot be read as Parquet")


def test_without_pyarrow(monkeypatch, tmp_path):
    real = builtins.__import__

    def imported(name, *rest, **options):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", imported)
    refusal(lambda: Records.from_parquet(tmp_path / "x"), ImportError, "pymc-dp with its extra 'parquet'")  # fmt: skip
