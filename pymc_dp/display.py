"""Short texts and HTML of objects: one line for ``repr``, tables for ``print`` and notebooks."""

from __future__ import annotations

import html
import inspect
import textwrap

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

#: Most entries of a sequence, and characters of a nested text, that are shown.
_MOST, _LENGTH = 4, 120
#: Columns of a text.
_WIDTH = 88
#: Most rows of a table, where there may be any number.
MOST_ROWS = 12
#: Arguments that are not shown: what PyMC sets, and what may hold data.
_HIDDEN = {"vars", "rng", "model", "blocked", "data", "records", "likelihood", "simulator", "compile_kwargs", "ledger"}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table as text and as HTML, with a title above (one or more lines) and `notes` below.

    With a `header`, columns of numbers are aligned to the right. Without one, the last column is wrapped to lines of
    its own at a width of 88 characters.
    """

    title: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    notes: Sequence[str] = ()

    def text(self) -> str:
        """The table as lines of text."""
        lines = [self.header, *self.rows] if self.header else _wrapped(self.rows)
        columns = list(zip(*lines, strict=True))
        widths = [max(map(len, column)) for column in columns]
        right = [bool(self.header) and all(map(_is_number, column[1:])) for column in columns]
        shown = [
            "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
            for line in lines
        ]  # fmt: skip
        title = self.title.split("\n") if self.title else []
        return "\n".join(line.rstrip() for line in [*title, *shown, *self.notes])

    def html(self) -> str:
        """The same as HTML."""
        cells = ["".join(f"<th>{html.escape(name)}</th>" for name in self.header)] if self.header else []  # fmt: skip
        for row in self.rows:
            cells.append("".join(f"<td style='text-align:left'>{html.escape(x)}</td>" for x in row))
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<pre>{html.escape(self.title)}</pre><table>{body}</table>{notes}"


def _wrapped(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The same cells, with the last column wrapped to lines."""
    before = (
        sum(2 + max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)) if rows else 0
    )
    width = max(_WIDTH - before, 40)
    lines: list[Sequence[str]] = []
    for *cells, last in rows:
        first, *rest = textwrap.wrap(
            last, width, break_long_words=False, break_on_hyphens=False
        ) or [""]
        lines += [(*cells, first), *((*("" for _ in cells), each) for each in rest)]
    return lines


class Shown:
    """Base class of objects with a short text: one line, and a table in notebooks.

    The line has the arguments that are not at their defaults (:func:`one_line`), also for a dataclass, whose own text
    would have all its arrays. A subclass may write `_table`, for notebooks and :func:`print`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep a dataclass from making a text of its own."""
        super().__init_subclass__(**kwargs)
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """The object as one line."""
        return one_line(self)

    def _table(self) -> Table:
        """The object as a table."""
        rows = [(name, in_short(value)) for name, value in _arguments(self).items()]
        return Table(type(self).__name__, rows)

    def _repr_html_(self) -> str:
        return self._table().html()


def one_line(value: object, **more: Any) -> str:
    """The class with its arguments that are not at their defaults, and `more`; arrays by their shape."""
    shown = {name: in_short(x) for name, x in _arguments(value).items()} | more
    return f"{type(value).__name__}({', '.join(f'{name}={x}' for name, x in shown.items())})"


def in_short(value: Any) -> str:
    """Short text of a value: no entries of arrays, no addresses, few entries of sequences."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"array of shape {value.shape}"
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        parts = [f"{in_short(name)}: {in_short(x)}" for name, x in _first(value.items())]
        return f"{{{_joined(parts, value)}}}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return f"({_joined([in_short(x) for x in _first(value)], value)})"
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name
    text = repr(value)
    is_long = len(text) > _LENGTH or "\n" in text or " at 0x" in text
    if is_long and not isinstance(value, str):
        return f"{type(value).__name__}(...)"
    return f"{text[:_LENGTH]}..." if is_long else text


def _first(values: Any) -> list[Any]:
    return list(values)[:_MOST]


def _joined(parts: list[str], values: Any) -> str:
    return ", ".join([*parts, *([f"... {len(values)} in all"] if len(values) > _MOST else [])])


def _is_number(text: str) -> bool:
    return text[:1] in {*"0123456789+-."}


def _arguments(value: object) -> dict[str, Any]:
    """Public constructor arguments that the object keeps as attributes and that are not at their defaults."""
    hidden = {f.name for f in fields(value) if not f.repr} if is_dataclass(value) else _HIDDEN
    found = {}
    maker = type(value) if isinstance(value, tuple) else type(value).__init__
    for name, parameter in inspect.signature(maker).parameters.items():
        held = getattr(value, name, parameter.empty)
        if name not in hidden and held is not parameter.empty and held is not parameter.default:
            is_default = not isinstance(held, np.ndarray) and _equal(held, parameter.default)
            if not is_default:
                found[name] = held
    return found


def _equal(one: Any, other: Any) -> bool:
    """Whether two plain values are equal, with their types."""
    return type(one) is type(other) and isinstance(one, str | int | float | tuple) and one == other
