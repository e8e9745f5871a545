"""Constants, flags and defaults of the core, written down by `python -m tests.runs.constants`.

Who changes one changes the results of everyone, or what two programs agree about: it shows in the record's difference.
Left out is what only speed and memory depend on, and the settings of a run, which test_defaults.py has by hand.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ffgb

FILE = Path(__file__).with_name("constants.json")
SOURCE = Path(ffgb.__file__).parent
PACKAGES = ("core", "algorithms", "learners", "federation", "privacy")
SPEED = {
    *("AT_ONCE", "BLOCK", "CHUNK", "COMPILED_ROWS", "KEPT", "LARGE", "MEMBERS_IN_A_BLOCK", "POINTS_IN_A_BLOCK"),
    *("ROWS", "SMALL_PRODUCT", "SMALL_RESULT", "TILE", "VALUES_AT_ONCE", "COVERAGES"),
}


def plain(value: Any) -> bool:
    """A number, a truth value, or a tuple of such."""
    return isinstance(value, bool | int | float) or (
        isinstance(value, tuple) and bool(value) and all(plain(v) for v in value)
    )


def modules() -> dict[str, ModuleType]:
    files = [file for package in PACKAGES for file in sorted((SOURCE / package).rglob("*.py"))]
    names = [".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return {name: importlib.import_module(f"ffgb.{name}") for name in names}


def _constants(module: ModuleType) -> dict[str, Any]:
    """Names in capitals."""
    tree = ast.parse(inspect.getsource(module))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    found = {name: getattr(module, name) for name in names if name.isupper() and name not in SPEED}
    return {name: value for name, value in found.items() if plain(value)}


def _defaults(function: Any) -> dict[str, Any]:
    """Of arguments."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if plain(each.default)}


def _of_class(kind: type[Any]) -> dict[str, Any]:
    """Flags, defaults of fields, and those of the arguments of methods."""
    found: dict[str, Any] = {}
    for name, value in sorted(vars(kind).items()):
        if plain(value) and not name.startswith("_"):
            found[name] = value
        elif inspect.isfunction(value) and (not is_dataclass(kind) or not name.startswith("__")):
            found |= {f"{name}({argument})": default for argument, default in _defaults(value).items()}
    return found


def found() -> dict[str, Any]:
    """By module: constants, and what classes and functions take if nothing is said."""
    record: dict[str, Any] = {}
    for name, module in modules().items():
        own = _constants(module)
        for word, value in sorted(vars(module).items()):
            if getattr(value, "__module__", "") != module.__name__:
                continue
            more = _of_class(value) if inspect.isclass(value) else _defaults(value) if inspect.isfunction(value) else {}
            own |= {f"{word}.{each}": default for each, default in more.items()}
        if own:
            record[name] = own
    # infinity is no JSON
    text = json.dumps(record, default=str).replace("-Infinity", '"-inf"').replace("Infinity", '"inf"')
    read: dict[str, Any] = json.loads(text)
    return read


if __name__ == "__main__":
    FILE.write_text(json.dumps(found(), indent=1, sort_keys=True) + "\n")
