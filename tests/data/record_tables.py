"""Tables for the tests of records, as arrays and as files."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ARGUMENTS = {"X": ["a", "b"], "y": "y", "s": ["c"], "flag": "flag"}


def columns_of(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": rng.normal(size=n_rows),
        "b": rng.integers(-9, 9, n_rows),
        "c": rng.normal(size=n_rows).astype(np.float32),
        "y": rng.integers(-9, 9, n_rows).astype(np.int8),
        "flag": rng.random(n_rows) < 0.5,
    }


def expected(columns):
    """The arguments, as ARGUMENTS tells."""
    return {
        "X": np.column_stack([columns["a"], columns["b"]]).astype(np.float64),
        "y": columns["y"],
        "s": columns["c"][:, None],
        "flag": columns["flag"],
    }


def write_files(folder, columns, lengths=None, row_group_size=None, **options):
    """Files with successive rows; their names begin with other letters than those of other tables in the folder."""
    folder.mkdir(exist_ok=True)
    n_rows = len(next(iter(columns.values())))
    ends = np.cumsum(lengths if lengths is not None else [n_rows])
    for k, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        table = pa.table({name: column[begin:end] for name, column in columns.items()})
        pq.write_table(
            table, folder / f"{k:03}.parquet", row_group_size=row_group_size or n_rows, **options
        )
    return folder


def assert_same(found, wanted):
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].flags.c_contiguous, name
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def joined(blocks):
    blocks = list(blocks)
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
