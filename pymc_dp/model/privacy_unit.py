"""The privacy unit: which rows of the data make up a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np
import pytensor
import pytensor.tensor as pt

from pytensor.graph.basic import Variable

from pymc_dp.errors import UnsupportedModel

MAX_RECORDS = 2**31


def assign_rows(
    n_rows: dict[str, int], records: np.ndarray | Mapping[str, np.ndarray] | None
) -> tuple[list[np.ndarray], int]:
    """Record number of each row of each observed variable, from 0, and the number of records."""
    if not isinstance(records, Mapping):
        lengths = set(n_rows.values())
        if len(lengths) > 1:
            raise UnsupportedModel(
                f"observed variables have different numbers of rows, {n_rows}, so it is not clear "
                "which rows belong to one record. Pass records=, a dict with the record (e.g. the "
                "person) of each row, for each observed variable."
            )
        if records is None:
            records = np.arange(*lengths)
        records = dict.fromkeys(n_rows, records)
    if set(records) != set(n_rows):
        raise ValueError(
            f"records must have the keys {sorted(n_rows)}, one per observed variable, "
            f"not {sorted(map(str, records))}"
        )
    arrays = [_checked(records[name], name, n) for name, n in n_rows.items()]
    distinct, inverse = np.unique(np.concatenate(arrays), return_inverse=True)
    if len(distinct) == 0 or len(distinct) >= MAX_RECORDS:
        raise ValueError(f"there must be between 1 and 2**31 - 1 records, not {len(distinct)}")
    labels = np.split(inverse, np.cumsum([len(a) for a in arrays])[:-1])
    for label in labels:
        label.flags.writeable = False
    return labels, len(distinct)


def _checked(labels: np.ndarray, name: str, n_rows: int) -> np.ndarray:
    array = np.asarray(labels)
    if array.shape != (n_rows,):
        raise ValueError(
            f"records of {name!r} must have one label per row, shape ({n_rows},), not {array.shape}"
        )
    if array.dtype.kind not in "iu":
        raise ValueError(f"records of {name!r} must be integers, not of type {array.dtype}")
    return array


def per_record(rows: Sequence[Variable], labels: Sequence[np.ndarray], n_records: int) -> Variable:
    """Sum the rows of each record, over all observed variables."""
    in_order = np.arange(n_records)
    pairs = list(zip(rows, labels, strict=True))
    aligned = [row for row, label in pairs if np.array_equal(label, in_order)]
    scattered = [pair for pair in pairs if not np.array_equal(pair[1], in_order)]
    total = reduce(add, aligned) if aligned else pt.zeros(n_records)
    for row, label in scattered:
        total = pt.inc_subtensor(total[pytensor.shared(label)], row)
    return total
