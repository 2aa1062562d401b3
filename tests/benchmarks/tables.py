"""Tables of results: as stored, next to those of the run before."""

from __future__ import annotations

from typing import Any

#: What is not a ratio: shown, but not compared.
NOT_RATIOS = {"microseconds", "draws"}
#: Compared by difference.
EXPONENTS = {"growth exponents"}
CHANGE = 0.25
#: Samplers that are summed up together.
KINDS = {
    "decisions on all records": ("DPPenalty", "DPBarker", "DPFastMH, full batch"),
    "decisions on batches": ("DPPenalty, batch", "DPFastMH, batch"),
    "DPHMC, L = 1": ("DPHMC, L = 1",),
    "DPHMC, L = 5": ("DPHMC, L = 5",),
    "DPSGHMC, 5 batches": ("DPSGHMC, 5 batches",),
}


def number(value: float | None) -> str:
    """Two or three digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"  # fmt: skip


def changed(title: str, column: str, new: float | None, old: float | None) -> bool:
    """Whether a ratio is another one, beyond what noise on a shared machine explains."""
    if title in NOT_RATIOS or column.endswith("[ms]"):
        return False
    if new is None or old is None:
        return (new is None) != (old is None)
    if title in EXPONENTS:
        return abs(new - old) > CHANGE
    low, high = sorted((abs(new), abs(old)))
    return high > (1 + CHANGE) * low


def cell(title: str, column: str, new: float | None, old: dict[str, float | None]) -> str:
    """The number, the one before in brackets, and a star if it has changed."""
    if column not in old:
        return number(new)
    before = number(old[column]) or "none"
    return f"{number(new)} ({before})" + " *" * changed(title, column, new, old[column])


def table(title: str, rows: dict[str, Any], old: dict[str, Any]) -> list[str]:
    columns = list(dict.fromkeys(c for row in rows.values() for c in row))
    lines = [f"| {title} | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for name, row in rows.items():
        cells = [cell(title, c, row[c], old.get(name, {})) if c in row else "" for c in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def in_short(ratios: dict[str, dict[str, Any]]) -> list[str]:
    """Ranges of two tables of ratios, over samplers of a kind and numbers of covariates."""
    columns = next(iter(next(iter(ratios.values())).values()))
    sizes = list(dict.fromkeys(column.partition(",")[0] for column in columns))
    lines = [f"| {'; '.join(ratios)} | " + " | ".join(sizes) + " |", "| --- |" + " ---: |" * len(sizes)]  # fmt: skip
    for kind, samplers in KINDS.items():
        cells = []
        for size in sizes:
            ranges = []
            for rows in ratios.values():
                found = [
                    value
                    for name in samplers
                    for column, value in rows.get(name, {}).items()
                    if column.startswith(f"{size},") and value is not None
                ]
                ends = dict.fromkeys(map(number, (min(found), max(found)))) if found else ()
                ranges.append(" to ".join(ends))
            cells.append("; ".join(ranges))
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def conditions(run: dict[str, Any]) -> str:
    """When, where and how busy."""
    machine = run["machine"]
    load = " to ".join(f"{x:.1f}" for x in run["load"])
    return (
        f"{run['date']}, {run['seconds']:.0f} s, load {load}; {machine['processor']}, {machine['cores']} cores, Python {machine['python']}, "
        f"PyMC {machine['pymc']}, NumPy {machine['numpy']}"
    )


def lines(parts: dict[str, Any], last: dict[str, Any] | None = None) -> list[str]:
    """All tables in Markdown, each followed by an empty line."""
    found = []
    for part, run in parts.items():
        found += [f"*{part}*: {conditions(run)}", ""]
        for title, rows in run["tables"].items():
            old = (last or {}).get(part, {}).get("tables", {}).get(title, {})
            found += [*table(title, rows, old), ""]
        ratios = {t: rows for t, rows in run["tables"].items() if t.startswith("iteration /")}
        if ratios:
            found += ["In short, from the least to the largest:", "", *in_short(ratios), ""]
    return found
