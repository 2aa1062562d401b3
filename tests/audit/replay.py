"""Replay audit: a run on a neighbour, with the noisy numbers of the first run given back, is equal in everything else.

Noisy sums and decisions are what a budget pays for. A run on data ``D`` is recorded; it runs again on a neighbour ``D'``,
where each noisy number is computed and then replaced by the recorded one. What still differs was not paid for: results,
attributes, files, printed text, logs, warnings, errors, claims, seeds, or the order of reads and claims.

The idea, with 13 violations that it found in 12 other libraries, is that of https://arxiv.org/abs/2602.17454.

Doors: noise is added by `noisy_sum`, decisions are drawn by `decide`, wherever these are imported; sites that add noise answer
`BlockedLikelihood.noisy`. Private values are recognised by content, in whatever a compiled function of parameters or rows is
called with and in blocks of records: made-up rows do not have these floats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import itertools
import logging
import re
import sys
import traceback
import types
import uuid
import warnings

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pytensor
import pytest
import xarray as xr

from pymc_dp import progress
from pymc_dp.data.records import Records
from pymc_dp.model.blocked_likelihood import BlockedLikelihood
from pymc_dp.model.sums.row_functions import RowFunction
from pymc_dp.privacy.budget import ledger as ledgers
from pymc_dp.privacy.randomness import bits as bit_sources
from pymc_dp.privacy.randomness import rounded_gaussian
from tests.seeded_bits import seeded_for

__all__ = ["Leak", "Run", "check_equal", "check_paid", "recorded", "replayed"]

#: Of PyTensor's functions; its module has another name in each version.
Function: Any = type(pytensor.function([], []))
_rng, _uuid, _uuid4 = np.random.default_rng, uuid.UUID, uuid.uuid4


class Leak(AssertionError):
    """Something that was not paid for depends on the data."""


@dataclass
class Run:
    """All that a call let out, flat: by path, in order. `noisy` are the numbers that were paid for."""

    shown: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    noisy: list[Any] = field(default_factory=list)


# ---------------------------------------------------------------- comparable forms

#: Attributes and fields that hold the time, a process or a place on the disk.
_CLOCK = re.compile(r"creat|time|process|path|ledger$|pid|duration|_thread|host$|token")
_TEXT = [
    (r"[\d.]+ ?(draws?|it|steps?)/m?s|[\d.]+ ?(s|ms|min|h)/(draw|it|step)", "SPEED"),
    (r"[\d.]+ (s|ms|seconds?|minutes?)\b", "TIME"),
    (r"\d+:\d\d(:\d\d)?", "TIME"),
    (r"\d{4}-\d\d-\d\dT[\d:.+]+", "TIME"),
    (r"/[\w./-]*/[\w.-]+", "PATH"),
    (r"0x[0-9a-f]+", "ADDRESS"),
]


def words(text: str) -> str:
    """Text without times, places on the disk, addresses, and what a progress bar has to do with a clock."""
    lines = []
    for line in str(text).splitlines():
        if "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in line:  # a bar: draws, acceptance, epsilon, speed
            line = " ".join(line.split()[1:4])
        if re.search(
            r"^ *draws/s|lock|[Cc]ompil| so far\s*$|\N{BOX DRAWINGS LIGHT HORIZONTAL}", line
        ):
            continue
        for pattern, word in _TEXT:
            line = re.sub(pattern, word, line)
        lines.append(" ".join(line.split()))
    return "\n".join(filter(None, lines))


def flat(thing: Any, path: str = "", seen: frozenset[int] = frozenset()) -> dict[str, Any]:
    """Every number and word in a result, by the path that leads there; floats and arrays by their bytes."""
    if thing is None or isinstance(thing, bool | int | np.integer | np.bool_):
        return {path: (type(thing).__name__, thing)}
    if isinstance(thing, float | np.floating):
        return {path: (type(thing).__name__, np.float64(thing).tobytes())}
    if isinstance(thing, enum.Enum):
        return {path: str(thing)}
    if isinstance(thing, str | bytes):
        return {path: words(thing) if isinstance(thing, str) else thing}
    if id(thing) in seen or isinstance(thing, type | types.ModuleType):
        return {path: getattr(thing, "__name__", "seen")}
    seen |= {id(thing)}
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        thing = np.ascontiguousarray(thing)
        return {path: (thing.dtype.str, thing.shape, thing.tobytes())}
    found: dict[str, Any] = {path: type(thing).__name__}
    for name, part in _parts(thing):
        if not _CLOCK.search(str(name)):
            found |= flat(part, f"{path}/{name}", seen)
    return found


def _parts(thing: Any) -> list[tuple[Any, Any]]:
    """What an object holds, by name."""
    if isinstance(thing, xr.DataArray | xr.Variable):
        return [("dims", thing.dims), ("attrs", thing.attrs), ("values", thing.values)]
    if isinstance(thing, xr.Dataset):
        return [("attrs", thing.attrs), *thing.variables.items()]
    if hasattr(thing, "children") and hasattr(thing, "to_dataset"):
        return [(".", thing.to_dataset()), *thing.children.items()]
    if hasattr(az, "InferenceData") and isinstance(thing, az.InferenceData):
        return [("attrs", thing.attrs), *((g, thing[g]) for g in thing.groups())]
    if isinstance(thing, pd.DataFrame):
        return [(n, thing[n].to_numpy()) for n in thing]
    if isinstance(thing, Mapping):
        return [*thing.items()]
    if isinstance(thing, BaseException):
        notes = getattr(thing, "__notes__", [])
        named = [("words", str(thing)), ("notes", notes), ("cause", thing.__cause__ or thing.__context__)]  # fmt: skip
        return [*named, *vars(thing).items()]
    if isinstance(thing, list | tuple | set | frozenset | np.ndarray):
        return [*enumerate(sorted(thing) if isinstance(thing, set | frozenset) else thing)]
    if not type(thing).__module__.startswith("pymc_dp") or callable(thing):
        return []
    text = [("text", str(thing)), ("repr", repr(thing))]
    if hasattr(thing, "_repr_html_"):
        text.append(("html", thing._repr_html_()))
    if hasattr(thing, "to_json"):
        text.append(("json", thing.to_json()))
    if hasattr(thing, "to_dict"):
        text.append(("dict", thing.to_dict()))
    if dataclasses.is_dataclass(thing):
        text += [(f.name, getattr(thing, f.name)) for f in dataclasses.fields(thing)]
    return text


# ---------------------------------------------------------------- doors


def _each_import(function: Callable[..., Any]) -> list[tuple[types.ModuleType, str]]:
    """Modules of the package that hold a function, and its name there."""
    modules = [m for n, m in [*sys.modules.items()] if n.startswith("pymc_dp") and m is not None]
    return [(m, n) for m in modules for n, value in [*vars(m).items()] if value is function]


class _Doors:
    """What happens at the doors during one run: events are noted; noisy numbers are noted, or replaced by given ones."""

    def __init__(self, given: list[Any] | None, private: np.ndarray) -> None:
        self.run, self._given, self._private = Run(), given, private
        self._known: dict[int, tuple[Any, bool]] = {}
        self._inside = False

    def noisy(self, real: Callable[..., Any], *public: Any) -> Any:
        """A noisy number: computed in any case, so that errors and warnings on the way are those of the data."""
        k, value = len(self.run.noisy), real()
        self.run.noisy.append(value)
        self.run.events.append(("noise", *public, np.shape(value)))
        if (
            self._given is None
            or k >= len(self._given)
            or np.shape(self._given[k]) != np.shape(value)
        ):
            return value
        return np.array(self._given[k]) if np.ndim(value) else self._given[k]

    def reads(self, arrays: Any) -> None:
        """Note a read if one of the arrays has private floats."""
        if self._inside:
            return
        self._inside = True
        try:
            if any(self._is_private(array) for array in arrays):
                self.run.events.append(("read",))
        finally:
            self._inside = False

    def _is_private(self, array: Any) -> bool:
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.size < 8:
            return False
        return bool(np.isin(array.astype(float), self._private).any())

    def stored(self, function: Function) -> np.ndarray | None:
        """The private values, if a compiled function holds some."""
        if id(function) not in self._known:
            held = [getattr(v, "data", None) for v in function.maker.fgraph.variables]
            held += [c.storage[0] for c in function.input_storage]
            self._known[id(function)] = function, any(map(self._is_private, held))
        return self._private if self._known[id(function)][1] else None


@contextlib.contextmanager
def _watched(doors: _Doors, name: str):
    """The doors are watched; secret bits other than those of noise are the same in each run."""
    events = doors.run.events
    adding, deciding = rounded_gaussian.noisy_sum, bit_sources.decide
    calling, reading, taking = Function.__call__, Records.blocks, Records.take
    rows, loop, claim, sites = RowFunction.__call__, RowFunction.loop, ledgers.Ledger.claim, BlockedLikelihood.noisy  # fmt: skip
    counter = itertools.count(1)

    def other_bits() -> Any:
        return bit_sources.SeededBits(_rng(len(doors.run.noisy)))

    def noisy_sum(steps: Any, exponent: int, scale: float, bits: Any, *law: Any) -> Any:
        kind = getattr(law[0], "__name__", None) if law else None
        return doors.noisy(
            lambda: adding(steps, exponent, scale, other_bits(), *law), exponent, scale, kind
        )

    def decide(rule: Any, log_ratio: float, bits: Any) -> Any:
        return doors.noisy(lambda: deciding(rule, log_ratio, other_bits()), rule.name)

    def at_sites(self: BlockedLikelihood, term: Any, law: Any, bits: Any) -> Any:
        if not getattr(self.records, "adds_noise", False):
            return sites(self, term, law, bits)
        return doors.noisy(lambda: sites(self, term, law, bits), law.scale)

    def called(self: Function, *arguments: Any, **options: Any) -> Any:
        if arguments:  # others convert what is stored, and have no parameters
            doors.reads([*arguments, doors.stored(self)])
        return calling(self, *arguments, **options)

    def of_rows(self: RowFunction, values: Any, gathered: Any) -> Any:
        doors.reads(gathered)
        return rows(self, values, gathered)

    def looped(self: RowFunction, *arguments: Any) -> Any:
        doors.reads([array for array, _ in self.data])
        return loop(self, *arguments)

    def blocks(self: Records) -> Any:
        identified = sys._getframe(1).f_code.co_name == "digests"  # a digest is no sum
        for block in reading(self):
            if not identified:
                doors.reads(block.values())
            yield block

    def take(self: Records, *arguments: Any) -> Any:
        found = taking(self, *arguments)
        doors.reads(found.values())
        return found

    def claimed(self: Any, *what: Any, **terms: Any) -> Any:
        events.append(("claim", *flat([what, terms]).items()))
        return claim(self, *what, **terms)

    def default_rng(seed: Any = None) -> Any:
        if seed is not None and not isinstance(seed, np.random.Generator | np.random.BitGenerator):
            entropy = seed.entropy if isinstance(seed, np.random.SeedSequence) else seed
            events.append(("seed", *flat(entropy).items()))
        return _rng(seed)

    def identity() -> uuid.UUID:
        """Compilers name files by others."""
        of_package = sys._getframe(1).f_globals["__name__"].startswith("pymc_dp")
        return _uuid(int=next(counter) << 64) if of_package else _uuid4()

    with pytest.MonkeyPatch.context() as patch, seeded_for(name):
        for real, fake in ((adding, noisy_sum), (deciding, decide)):
            for module, attribute in _each_import(real):
                patch.setattr(module, attribute, fake)
        for owner, attribute, fake in (
            (BlockedLikelihood, "noisy", at_sites), (Function, "__call__", called), (RowFunction, "__call__", of_rows),
            (RowFunction, "loop", looped), (Records, "blocks", blocks), (Records, "take", take),
            (ledgers.Ledger, "claim", claimed), (np.random, "default_rng", default_rng),
            (uuid, "uuid4", identity), (progress, "EVERY", 1e6),  # no line because a run takes long
        ):  # fmt: skip
            patch.setattr(owner, attribute, fake)
        yield


class _Handler(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = "" if not record.exc_info else "".join(traceback.format_exception_only(*record.exc_info[:2]))  # fmt: skip
        self.said.append(f"{record.name} {record.levelname} {record.getMessage()} {error}")


#: Loggers of others whose words follow from threads, from files and from compilers, which show constants of the code.
_OTHERS = ("numba", "pytensor.link", "asyncio", "distributed", "tornado", "h5py", "matplotlib", "fsspec")  # fmt: skip


@contextlib.contextmanager
def _listening(handler: _Handler, output: io.StringIO, caught: list[Any]):
    """Text, logs at every level, and warnings."""
    names = [n for n in logging.root.manager.loggerDict if not n.startswith(_OTHERS)]
    loggers = [logging.getLogger(), *map(logging.getLogger, names)]
    levels = [logger.level for logger in loggers]
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as found,
    ):
        warnings.simplefilter("always")
        for module in [m for n, m in sys.modules.items() if n.startswith("pymc.progress_bar")]:
            if hasattr(module, "stderr"):  # PyMC 5 keeps the one of the first import
                patch.setattr(module, "stderr", output)
        logging.root.addHandler(handler)
        for logger in loggers:
            logger.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            logging.root.removeHandler(handler)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            caught += found


def recorded(call: Callable[[], Any], private: Any, given: list[Any] | None = None) -> Run:
    """Make a call with all doors watched.

    Parameters
    ----------
    call : callable
        Without arguments; builds its model and budget, and returns what would be published. An error is a result.
    private : array
        Floats by which private arrays are recognised.
    given : list, optional
        Noisy numbers of another run, in the place of its own.
    """
    doors = _Doors(given, np.unique(np.asarray(private, float)))
    handler, output, caught = _Handler(), io.StringIO(), []
    with _listening(handler, output, caught), _watched(doors, "replay"):
        try:
            result = call()
        except BaseException as error:
            if isinstance(error, Leak):
                raise
            result = error
    run = doors.run
    logged = [words(line) for line in handler.said if not line.startswith(_OTHERS)]
    warned = [f"{w.category.__name__} {words(w.message)}" for w in caught if "BLAS" not in str(w.message)]  # fmt: skip
    run.shown = flat(result, "result")
    run.shown |= {"printed": words(output.getvalue()), "logged": [*filter(None, logged)], "warned": warned}  # fmt: skip
    return run


def replayed(
    call: Callable[[Any], Any], data: Any, neighbours: Mapping[str, Any], private: Any
) -> tuple[Run, dict[str, str]]:
    """Record a call on data, and replay it on each neighbour: the first run, and what leaks, by where it was found."""
    first, leaks = recorded(lambda: call(data), private), {}
    checks: dict[str, Callable[[], None]] = {"before payment": lambda: check_paid(first)}
    for name, other in neighbours.items():
        checks[name] = lambda other=other: check_equal(
            first, recorded(lambda: call(other), private, first.noisy)
        )
    for name, check in checks.items():
        try:
            check()
        except Leak as leak:
            leaks[name] = str(leak)
    return first, leaks


def check_equal(one: Run, other: Run) -> None:
    """Leak unless runs differ in noisy numbers only."""
    for what in [*one.shown, *(k for k in other.shown if k not in one.shown)]:
        a, b = one.shown.get(what, "nothing"), other.shown.get(what, "nothing")
        if a != b:
            raise Leak(f"{what} differs: {a!s:.300} / {b!s:.300}")
    for k, (a, b) in enumerate(
        itertools.zip_longest(in_order(one.events), in_order(other.events), fillvalue=())
    ):
        if a != b:
            parts = [p for p in itertools.zip_longest(a, b) if p[0] != p[1]]
            raise Leak(f"event {k} differs: {a[:1]} / {b[:1]}: {parts[0]!s:.300}")


def in_order(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Events as they happened, then seeds: several sites are made in any order."""
    seeds = sorted((event for event in events if event[0] == "seed"), key=repr)
    return [event for event in events if event[0] != "seed"] + seeds


def check_paid(run: Run) -> None:
    """Leak if a private array was read before the first claim."""
    kinds = [event[0] for event in run.events]
    if "read" in kinds and "claim" not in kinds[: kinds.index("read")]:
        raise Leak("a private array is read before anything is paid")
