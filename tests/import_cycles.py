"""Cycles of imports between files, in any tree of packages.

Type-only imports count as any other: a file that only names another one's types cannot be
read without it either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping


def imports_of(module: str, tree: ast.Module, modules: Iterable[str]) -> set[str]:
    """Return those of `modules` that a module imports, anywhere in its code."""
    known = set(modules)
    package = module.removesuffix(".__init__").split(".")
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                cut = node.level - module.endswith(".__init__")
                base = ".".join([*package[: len(package) - cut], *filter(None, [node.module])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.add(name if name in known else base)
    return (found & known) - {module}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the cycles of a graph: each its strongly connected modules, sorted.

    Tarjan's algorithm, with a stack of its own in place of recursion.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []
    for root in sorted(graph):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        path = [(root, iter(sorted(graph[root])))]
        while path:
            module, targets = path[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    path.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[module] = min(low[module], index[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[module])
                if low[module] == index[module]:
                    at = stack.index(module)
                    component, stack[at:] = sorted(stack[at:]), []
                    if len(component) > 1:
                        found.append(component)
    return found
