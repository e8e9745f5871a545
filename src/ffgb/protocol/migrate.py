"""Descriptions that earlier versions wrote, as this one has them: a model or a run of theirs is still read."""

from __future__ import annotations

from typing import Any

from ffgb.errors import FFGBError

WHOLE, SEARCHED = {"kind": "Whole"}, {"kind": "Searched"}


def migrated(recipe: dict[str, Any]) -> dict[str, Any]:
    """A description of one object, in this version's words."""
    kind = recipe.get("kind")
    if kind == "Job" and "share" in recipe:  # 0.1: f^0 was so many times one member
        if recipe.get("begins") is not None:
            raise FFGBError("version 0.1 was distilling when this was written; let that version finish the run")
        recipe = {name: value for name, value in recipe.items() if name != "share"}
    if kind == "Job" and isinstance(recipe.get("geometry"), dict) and recipe["geometry"].get("kind") == "AtServer":
        # 0.1: the server had the geometry, and clients answered with covectors
        algorithm = recipe["algorithm"]
        shared = {"kind": "FFGBShared", **{name: algorithm[name] for name in ("schedule", "mu", "search")}}
        return {**recipe, "geometry": None, "algorithm": shared}
    if kind == "FFGB" and "search" in recipe:  # 0.1: the length of a step was a flag
        rest = {name: value for name, value in recipe.items() if name != "search"}
        return {**rest, "length": SEARCHED if recipe["search"] else WHOLE}
    return recipe
