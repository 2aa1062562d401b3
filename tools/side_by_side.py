"""Measure the source of installed packages side by side: sizes, documentation, nesting, complexity.

``python tools/side_by_side.py pymc_dp emcee mici`` prints a table with one column for each package.
A body is a function without its docstring. Public arguments are those of functions and methods
without a leading underscore, ``__init__`` included. Nesting counts if, for, while, with and try.
Complexity is McCabe's, by radon (``pip install radon``).
"""

from __future__ import annotations

import ast
import importlib.util
import io
import sys
import tokenize

from pathlib import Path

import numpy as np

from radon.complexity import cc_visit

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try)


def source_files(package: str) -> list[Path]:
    """Files of an installed package, without tests; found without an import."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not an installed package")
    root = Path(spec.submodule_search_locations[0])
    files = [p for p in root.rglob("*.py") if "test" not in p.relative_to(root).as_posix()]
    return sorted(files)


def length(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1


def docstring_length(node: ast.AST) -> int:
    return length(node.body[0]) if ast.get_docstring(node) else 0


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Depth of the deepest block below a node; functions inside count for themselves."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FUNCTIONS):
            deepest = max(deepest, nesting(child, depth + isinstance(child, BLOCKS)))
    return deepest


def is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__init__"


def public_nodes(tree: ast.Module) -> list[ast.AST]:
    """Public functions, classes and methods of public classes, at the top of a module."""
    found = []
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            found.append(node)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found += [n for n in inner if isinstance(n, FUNCTIONS) and is_public(n.name)]
    return found


def arguments(node: ast.AST) -> list[ast.arg]:
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [a for a in given if a.arg not in ("self", "cls")]


def comment_lines(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(t.type == tokenize.COMMENT and t.line.strip().startswith("#") for t in tokens)


def measures(package: str) -> dict[str, str]:
    """One column of the table."""
    texts = [p.read_text(encoding="utf-8") for p in source_files(package)]
    trees = [ast.parse(text) for text in texts]
    lines = [len(text.splitlines()) for text in texts]
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, FUNCTIONS)]
    bodies = [max(0, length(n.body[-1]) + n.body[-1].lineno - n.body[0].lineno - docstring_length(n)) for n in functions]  # fmt: skip
    whole = [length(n) for n in functions]
    public = [n for tree in trees for n in public_nodes(tree)]
    documented = [
        bool(ast.get_docstring(n)) for n in public if getattr(n, "name", "") != "__init__"
    ]
    args = [a for n in public if isinstance(n, FUNCTIONS) for a in arguments(n)]
    with_docstrings = (ast.Module, ast.ClassDef, *FUNCTIONS)
    docs = sum(docstring_length(n) for t in trees for n in ast.walk(t) if isinstance(n, with_docstrings))  # fmt: skip
    depths = [nesting(n) for n in functions]
    blocks = [b for text in texts for b in cc_visit(text)]
    # radon lists methods both by themselves and inside their class
    complexity = [b.complexity for b in blocks if b.letter in "FM"]

    def share(part: float, of: float) -> str:
        return f"{100 * part / max(of, 1):.1f} %"

    return {
        "files": f"{len(texts)}",
        "lines": f"{sum(lines)}",
        "file, median / max": f"{np.median(lines):.0f} / {max(lines)}",
        "body, median / p90 / max": f"{np.median(bodies):.0f} / {np.quantile(bodies, 0.9):.0f} / {max(bodies)}",
        "bodies > 50 lines": f"{sum(b > 50 for b in bodies)} ({share(sum(b > 50 for b in bodies), len(bodies))})",
        "> 50 with docstring": f"{sum(w > 50 for w in whole)}",
        "annotated public args": share(sum(a.annotation is not None for a in args), len(args)),
        "public names with docstring": share(sum(documented), len(documented)),
        "docstring lines": share(docs, sum(lines)),
        "comment lines": share(sum(map(comment_lines, texts)), sum(lines)),
        "nesting, max / functions > 3": f"{max(depths)} / {sum(d > 3 for d in depths)}",
        "complexity, p90 / max": f"{np.quantile(complexity, 0.9):.0f} / {max(complexity)}",
        "complexity > 10": share(sum(c > 10 for c in complexity), len(complexity)),
    }


def main(packages: list[str]) -> None:
    columns = {package: measures(package) for package in packages}
    print("| |" + "".join(f" {package} |" for package in packages))
    print("|---|" + "---:|" * len(packages))
    for row in columns[packages[0]]:
        print(f"| {row} |" + "".join(f" {columns[p][row]} |" for p in packages))


if __name__ == "__main__":
    main(sys.argv[1:] or ["pymc_dp"])
