"""Lines that state what a call is doing, from its first second on: a table in terminals and notebooks, else log lines.

No thread lives on while ``pm.sample`` starts its workers: a process with threads cannot be forked safely. Workers
show nothing.
"""

from __future__ import annotations

import functools
import logging
import time

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_Result = TypeVar("_Result")
_log = logging.getLogger("pymc.dp")

#: Seconds between log lines: with the wait for a thread that compiles, less than the 5 that are promised.
EVERY = 3.0
_CURRENT: ContextVar[Callable[[str], None] | None] = ContextVar("progress", default=None)


def note(what: str) -> None:
    """Announce the next part of the work; only within :func:`shown`."""
    if (tell := _CURRENT.get()) is not None:
        tell(what)


@contextmanager
def shown(enabled: object) -> Iterator[None]:
    """Show announcements; the outermost of nested calls decides."""
    if _CURRENT.get() is not None:
        yield
        return
    with _display(enabled) as tell:
        token = _CURRENT.set(tell)
        try:
            yield
        finally:
            _CURRENT.reset(token)


def showing(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorator that shows a function's announcements unless ``progressbar`` is False."""

    @functools.wraps(function)
    def call(*args: Any, progressbar: bool | str = True, **kwargs: Any) -> _Result:
        with shown(progressbar):
            return function(*args, progressbar=progressbar, **kwargs)

    return call


@contextmanager
def silenced(silent: object) -> Iterator[None]:
    """Suppress log messages of PyMC and this package below warnings."""
    logger = logging.getLogger("pymc")
    level = logger.level
    if silent:
        logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


def counted(enabled: object, total: int, callback: Any = None) -> Any:
    """Callback of ``pm.sample`` that logs the number of draws if PyMC's bar is not visible, then calls `callback`."""
    if not enabled or _is_seen(Console()):
        return callback
    n_draws, latest = 0, time.monotonic()

    def count(trace: Any, draw: Any) -> None:
        nonlocal n_draws, latest
        n_draws += 1
        if time.monotonic() > latest + EVERY:
            latest = time.monotonic()
            _log.info("sampling: %d of %d draws", n_draws, total)
        if callback is not None:
            callback(trace, draw)

    return count


def _is_seen(console: Console) -> bool:
    """Whether the console can replace lines."""
    return console.is_terminal or console.is_jupyter


@contextmanager
def _display(enabled: object) -> Iterator[Callable[[str], None]]:
    console = Console()
    if not enabled:
        yield lambda what: None
    elif _is_seen(console):
        with _table(console) as tell:
            yield tell
    else:
        with _lines() as tell:
            yield tell


@contextmanager
def _table(console: Console) -> Iterator[Callable[[str], None]]:
    """A line with a clock for each part of the work."""
    columns = SpinnerColumn(finished_text=" "), TextColumn("{task.description}", markup=False), TimeElapsedColumn()  # fmt: skip
    # The thread by which rich refreshes by itself may live on for a moment.
    with Progress(*columns, console=console, auto_refresh=False) as progress:

        def finish() -> None:
            for task in progress.tasks:
                progress.update(task.id, total=1, completed=1)

        def tell(what: str) -> None:
            finish()
            progress.add_task(what, total=None)
            progress.refresh()

        with _repeated(0.1, progress.refresh):
            yield tell
        finish()


@contextmanager
def _lines() -> Iterator[Callable[[str], None]]:
    """A log line for each part of the work, and further ones every few seconds."""
    latest = "", 0.0

    def tell(what: str) -> None:
        nonlocal latest
        latest = what, time.monotonic()
        _log.info("%s", what)

    def tell_again() -> None:
        what, since = latest
        if what and (passed := time.monotonic() - since) > EVERY / 3:
            _log.info("%s: %.0f s so far", what, passed)

    with _repeated(EVERY, tell_again):
        yield tell


@contextmanager
def _repeated(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call a function every few seconds, in a thread that ends with the block."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            action()

    thread = Thread(target=repeat, name="pymc_dp progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
