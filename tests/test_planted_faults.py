"""Faults that tests plant in classes of the package: each overrides a member that exists, or it would change nothing."""

import ast
import inspect
import re

from pathlib import Path

FILES = sorted(Path(__file__).parent.rglob("*.py"))


def members(cls):
    """Names of a class and its bases, with the attributes that their methods in the package set."""
    sources = (inspect.getsource(c) for c in cls.__mro__ if c.__module__.startswith("pymc_dp."))
    return {*dir(cls), *(name for s in sources for name in re.findall(r"self\.(\w+)\b.*=", s))}


def defined(node):
    """Names that the body of a class gives a value."""
    names = (t for n in node.body for t in getattr(n, "targets", [getattr(n, "target", n)]))
    return {getattr(n, "name", getattr(n, "id", None)) for n in names} - {None}


def uses(tree, node):
    """Names that a class uses itself (``self.name``, not ``super().name``), or that are used of it by its name."""
    found = {
        (getattr(part, "name", None), n.attr)
        for part in node.body
        for n in ast.walk(part)
        if isinstance(n, ast.Attribute) and ast.unparse(n.value) in ("self", "cls")
    }
    by_name = rf"\b{node.name}(?:\(.*?\))?\.(\w+)"
    return {name for place, name in found if place != name} | {
        *re.findall(by_name, ast.unparse(tree))
    }


def faults(source):
    """Yield each class that is derived from one of the package, with its members that nothing would use."""
    tree, scope, known, mixins = ast.parse(source), {}, {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and "pymc_dp" in ast.unparse(node):
            exec(ast.unparse(node), scope)
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        bases = [b for b in map(ast.unparse, node.bases) if re.fullmatch(r"[\w.]+", b)]
        found = [known[b] for b in bases if b in known]
        found += [members(eval(b, scope)) for b in bases if b.split(".")[0] in scope]
        if not found:
            mixins[node.name] = node
            continue
        parts = [node, *(mixins[b] for b in bases if b in mixins)]
        inherited = set().union(*found)
        known[node.name] = inherited.union(*map(defined, parts))
        yield node.name, set().union(*(defined(p) - uses(tree, p) for p in parts)) - inherited


def test_every_override_exists():
    found = [(path.name, *pair) for path in FILES for pair in faults(path.read_text("utf-8"))]
    assert len(found) > 50
    assert [entry for entry in found if entry[2]] == []


def test_a_member_that_was_renamed_is_found():
    source = """
from pymc_dp import DPPenalty
class Mixin:
    def {0}(self, accesses): return super().{0}(accesses)
class Lost(DPPenalty):
    def {0}(self, accesses): return super().{0}(self.half(accesses))
    def half(self, accesses): return accesses[:1]
class Mixed(Mixin, DPPenalty): pass
"""
    assert list(faults(source.format("charge"))) == [("Lost", set()), ("Mixed", set())]
    assert list(faults(source.format("pay"))) == [("Lost", {"pay"}), ("Mixed", {"pay"})]
