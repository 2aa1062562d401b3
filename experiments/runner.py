"""One runner for all experiments: settings times repetitions, in processes, into a JSON file beside the script.

    python experiments/NAME.py [SETTING ...]    # what is not in NAME.json yet
    python experiments/NAME.py --small          # smallest sizes, in this process; nothing is stored
    python experiments/NAME.py --print          # the tables of the page, of what is stored; computes nothing
    python experiments/NAME.py --figure         # the figure of the page, likewise (some scripts)

An experiment is a function of a setting and a seed that returns numbers by name. With repetitions the file has a list for
each of these names, with one entry for each seed; without, what was returned. A setting ``part / name`` is stored as
``name`` below ``part``. What else the file contains is kept.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as many processes as cores

import argparse
import hashlib
import json
import logging
import multiprocessing
import warnings

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Stored = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What a run may depend on, besides setting and seed."""

    small: bool = False
    data: Path | None = None


@dataclass(frozen=True)
class Experiment:
    """An experiment: its settings with their repetitions (0: a single run, stored as it is), and its tables."""

    script: str  # results are beside it
    run: Callable[[str, int, Options], Stored | None]  # None if there is nothing to store
    settings: dict[str, int]
    tables: Callable[[Stored], list[str]]  # lines, given all that is stored
    small: tuple[str, ...] = ()  # settings of --small, by default all
    needs: dict[str, str] = field(default_factory=dict)  # what settings need as --data
    figure: Callable[[Stored], None] | None = None

    def stored(self) -> Stored:
        """Everything in the file."""
        file = Path(self.script).with_suffix(".json")
        found = json.loads(file.read_text()) if file.exists() else {}
        return {name: found[name] for name in self.settings if name in found} | found

    def missing(self, chosen: list[str], stored: Stored) -> list[tuple[str, int]]:
        """Settings and seeds that are not stored: the first ones of all settings before the second ones."""
        jobs = []
        for name in chosen or self.settings:
            found, repetitions = within(stored, name)[1], self.settings[name]
            done = 0 if found is None else len(next(iter(found.values()))) if repetitions else 1
            jobs += [(name, seed) for seed in range(done, max(repetitions, 1))]
        return sorted(jobs, key=lambda job: job[1])

    def add(self, stored: Stored, name: str, found: Stored) -> None:
        """Put the result of a run into its place, and write the file."""
        part, before = within(stored, name)
        key = name.rpartition(" / ")[2]
        if self.settings[name] == 0:
            part[key] = found
        elif before is None:
            part[key] = {column: [value] for column, value in found.items()}
        else:
            n = len(next(iter(before.values())))
            for column in before | found:
                before.setdefault(column, [None] * n).append(found.get(column))
        Path(self.script).with_suffix(".json").write_text(text_of(stored) + "\n")

    def main(self, arguments: list[str] | None = None) -> None:
        """Run what is missing, or print, or draw."""
        parser = argparse.ArgumentParser(description=f"The experiment of {Path(self.script).stem}.")
        parser.add_argument("settings", nargs="*", help="names; by default all")
        parser.add_argument("--small", action="store_true", help="smallest sizes, not stored")
        parser.add_argument("--print", action="store_true", help="tables of what is stored")
        parser.add_argument("--figure", action="store_true", help="figure of what is stored")
        parser.add_argument("--data", type=Path, help="file or folder, see the script")
        parser.add_argument("--processes", type=int, default=2)
        given = parser.parse_args(arguments)
        if unknown := {*given.settings} - {*self.settings}:
            parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(self.settings)}")
        if given.figure and self.figure is None:
            parser.error("this experiment has no figure")
        options = Options(given.small, given.data)
        if given.print:
            print("\n".join(self.tables(self.stored())))
        elif given.figure:
            assert self.figure is not None
            self.figure(self.stored())
        elif given.small:
            for name in given.settings or self.small or self.settings:
                print(name, rounded(one(self.run, name, 0, options)), flush=True)
        else:
            self.run_all(given.settings, options, given.processes)

    def run_all(self, chosen: list[str], options: Options, processes: int) -> None:
        """Run what is missing, in processes."""
        stored = self.stored()
        jobs = self.missing(chosen, stored)
        if options.data is None:
            for name in sorted({name for name, _ in jobs if name in self.needs}):
                print(f"{name} is left out: --data is needed, {self.needs[name]}")
            jobs = [job for job in jobs if job[0] not in self.needs]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            futures = [pool.submit(one, self.run, *job, options) for job in jobs]
            for (name, seed), future in zip(jobs, futures, strict=True):
                if (found := future.result()) is not None:
                    self.add(stored, name, rounded(found))
                    print(name, seed, flush=True)


def one(run: Callable, name: str, seed: int, options: Options) -> Stored | None:
    """A run without what PyMC and PyTensor say about it."""
    logger, level = logging.getLogger("pymc"), logging.getLogger("pymc").level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(name, seed, options)
    finally:
        logger.setLevel(level)


def within(stored: Stored, name: str) -> tuple[Stored, Any]:
    """Where a setting belongs, and what is there."""
    part, _, key = name.rpartition(" / ")
    place = stored.setdefault(part, {}) if part else stored
    return place, place.get(key)


def rounded(value: Any) -> Any:
    """Five digits are more than are known."""
    if isinstance(value, dict):
        return {str(key): rounded(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def text_of(value: Any, depth: int = 2, indent: int = 0) -> str:
    """JSON with a line for each entry of the two outer dictionaries."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    begin = "\n" + " " * indent
    lines = (
        f"{begin} {json.dumps(k)}: {text_of(v, depth - 1, indent + 1)}" for k, v in value.items()
    )
    return "{" + ",".join(lines) + begin + "}"


def table(heads: list[str], rows: list, align: str = "---", first: str = "---") -> list[str]:
    """Lines of a table in Markdown, with the alignment of its columns."""
    rule = [first, *[align] * (len(heads) - 1)]
    return ["| " + " | ".join(map(str, row)) + " |" for row in [heads, rule, *rows]]


def digest(found: Any) -> str:
    """Of all numbers that a picture shows."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def save_picture(picture: Any, path: Path, found: Any) -> None:
    """Save a picture of Matplotlib, with the digest of what it shows."""
    picture.savefig(path, dpi=130, metadata={"Comment": digest(found)})
