"""Reading files: the thread ends, memory is bounded, damaged files are reported without their content."""

import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from pymc_dp import Records
from pymc_dp.data.in_memory import InMemory
from tests.data.record_tables import columns_of, write_files


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def our_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("pymc_dp records")]


@pytest.fixture
def records(tmp_path):
    write_files(tmp_path, columns_of(1000), [500, 500], row_group_size=100)
    return Records.from_parquet(tmp_path, block_rows=10)


def test_the_thread_ends(records):
    """With the last block, when it is closed, and when the loop is left."""
    blocks = records.blocks()
    assert not our_threads()  # not before the first block
    for block in blocks:
        assert len(our_threads()) <= 1 and len(block["y"]) == 10
    assert not our_threads()
    for n_read in (1, 99):
        blocks = records.blocks()
        for _ in range(n_read):
            next(blocks)
        assert our_threads()
        blocks.close()
        assert not our_threads()
    with pytest.raises(ZeroDivisionError):
        for _ in records.blocks():
            1 / 0
    assert not our_threads()


def test_no_thread_for_one_block_and_rows_by_number(records, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread"))
    list(Records(columns_of(50)).blocks())
    records.take([3, 700])


def test_one_block_is_read_ahead(monkeypatch):
    made, real = [], InMemory.blocks

    def blocks(self, n_rows):
        for block in real(self, n_rows):
            made.append(block)
            yield block

    monkeypatch.setattr(InMemory, "blocks", blocks)
    for k, _ in enumerate(Records({"y": np.arange(9)}, block_rows=1).blocks()):
        assert len(made) in (k + 1, min(k + 2, 9))


def test_a_program_may_end_within_a_loop(tmp_path):
    write_files(tmp_path, columns_of(1000))
    program = f"from pymc_dp.data import Records; blocks = Records.from_parquet({str(tmp_path)!r}, block_rows=1).blocks(); next(blocks)"
    loaded = "import sys, types; package = types.ModuleType('pymc_dp'); package.__path__ = ['pymc_dp']; sys.modules['pymc_dp'] = package"
    done = subprocess.run([sys.executable, "-c", f"{loaded}; {program}"], timeout=600)
    assert done.returncode == 0


def test_missing_values_are_found_while_reading(tmp_path):
    columns = columns_of(100)
    late = {**columns, "a": pa.array(columns["a"], mask=np.arange(100) == 73)}
    records = Records.from_parquet(write_files(tmp_path, late), block_rows=10)
    blocks = records.blocks()
    assert len([next(blocks) for _ in range(7)]) == 7
    with pytest.raises(ValueError, match="'a' has missing values"):
        next(blocks)
    assert not our_threads()
    with pytest.raises(ValueError, match="'a' has missing values"):
        records.take([73])
    records.split(2)[0].take([0])


def test_damaged_files(tmp_path):
    path = write_files(tmp_path, columns_of(2000), row_group_size=500) / "000.parquet"
    content, status = path.read_bytes(), os.stat(path)
    half = len(content) // 2
    records = Records.from_parquet(path)
    path.write_bytes(content[:200] + bytes(half) + content[200 + half :])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(OSError, match=r"000.parquet cannot be read as Parquet \(\w+\): check"):
        list(records.blocks())
    path.unlink()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        list(records.blocks())
    assert not our_threads()


@pytest.mark.parametrize("change", [columns_of(1500), columns_of(2000, seed=1), None])
def test_changed_files(tmp_path, change):
    path = write_files(tmp_path, columns_of(2000), row_group_size=500) / "000.parquet"
    piece = pickle.loads(pickle.dumps(Records.from_parquet(path).split(2)))[1]
    list(piece.blocks())
    if change:
        write_files(tmp_path, change, row_group_size=500)
    os.utime(path, ns=(0, 0))
    for read in (lambda: list(piece.blocks()), lambda: piece.take([0])):
        with pytest.raises(RuntimeError, match="has changed since it was opened: make the Records"):
            read()


def test_arrow_holds_a_small_part_of_a_row_group(tmp_path):
    columns = {f"x{k}": np.random.default_rng(k).normal(size=400_000) for k in range(5)}
    write_files(tmp_path, columns, use_dictionary=False, data_page_size=2**16)  # 16 MB
    del columns
    before, most = pa.total_allocated_bytes(), 0
    for _ in Records.from_parquet(tmp_path, block_rows=2000).blocks():
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 4e6
    assert pa.total_allocated_bytes() - before < 1e5


@pytest.mark.slow
def test_memory_of_a_process_is_bounded(tmp_path):
    """One row group of 256 MB, by the largest resident size that the system saw."""
    columns = {f"x{k}": np.random.default_rng(k).normal(size=4_000_000) for k in range(8)}
    write_files(tmp_path, columns, use_dictionary=False)
    del columns
    program = f"""
import sys, types
package = types.ModuleType("pymc_dp"); package.__path__ = ["pymc_dp"]; sys.modules["pymc_dp"] = package
from pymc_dp.data import Records
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
records = Records.from_parquet({str(tmp_path)!r}, arguments={{"X": [f"x{{k}}" for k in range(8)]}})
begin = peak()
rows = sum(len(block["X"]) for block in records.blocks())
records.take([5, 3_999_999])
print(rows, (peak() - begin) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=600)  # fmt: skip
    rows, megabytes = map(int, done.stdout.split())
    assert rows == 4_000_000 and megabytes < 128
    assert os.path.getsize(tmp_path / "000.parquet") > 240e6
