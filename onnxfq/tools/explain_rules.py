"""`explain_rule`: what a rule of `check` looks for and why, as its own function says it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from onnxfq.errors import RecipeError, nearest
from onnxfq.targets.reading.limits import NEEDS_BOTH
from onnxfq.targets.target import TARGETS

_PACKAGE = Path(__file__).parents[1]
_MAKERS = {"make_finding": 0, "about_model": 0, "Finding": 0, "TargetLimit": 0, "needs_both": 1}
"""Calls with the place of the code of a rule, or `rule`; the third argument of a limit explains it."""


@cache
def list_rules() -> dict[str, dict[str, str]]:
    """Return the text of each rule by its code and by target; `` stands for all targets."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted([*(_PACKAGE / "targets").rglob("*.py"), _PACKAGE / "tools" / "check.py"]):
        part = path.relative_to(_PACKAGE).parts[1]
        target = part if part in TARGETS else ""
        for code, text in _read_rules(ast.parse(path.read_text(encoding="utf-8"))):
            texts = found.setdefault(code, {})
            texts[target] = "\n\n".join(dict.fromkeys([*filter(None, [texts.get(target)]), text]))
    return found


def _read_rules(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the code of each rule of a module, and the docstring of the function that makes its finding."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    texts = {one.name: ast.get_docstring(one) or "" for one in functions}
    scopes: list[tuple[ast.AST, str]] = [(tree, ""), *((one, texts[one.name]) for one in functions)]
    for scope, text in scopes:
        for call in ast.walk(scope):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _MAKERS:
                place = _MAKERS[call.func.id]
                given = [*call.args[place : place + 1], *(k.value for k in call.keywords if k.arg == "rule")]
                for code in given:
                    if isinstance(code, ast.Constant) and isinstance(code.value, str):
                        limit = call.args[2] if call.func.id == "TargetLimit" else None
                        own = texts.get(limit.id, "") if isinstance(limit, ast.Name) else text
                        own = NEEDS_BOTH if call.func.id == "needs_both" else own
                        if own:
                            yield code.value, own


def explain_rule(code: str) -> str:
    """Return the text of a rule. Raises RecipeError for an unknown code, with the nearest."""
    check_codes([code])
    parts = list_rules()[code].items()
    return "\n\n".join(f"{code} of {target or 'every target'}\n\n{text}" for target, text in parts)


def check_codes(codes: list[str]) -> None:
    """Raise RecipeError for a code that no rule has."""
    for code in codes:
        if code not in list_rules():
            place = "; `check` prints the name of the rule in each finding, behind its severity"
            hint = nearest(code, list_rules()) or place
            raise RecipeError(f"no rule of check is called {code!r}{hint}")
