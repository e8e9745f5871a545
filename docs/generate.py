"""Pages of the site that are not in this folder, as a hook of MkDocs (mkdocs.yml).

- Files from elsewhere in the repository (`INCLUDED`, the pictures of the experiments, and the notebooks).  Links
  between files are written as they work on a code-hosting page; here they are rewritten for the site.
- `settings.md`: the settings of a run, from `settings`.  That is the one function to change if settings are declared
  elsewhere.
- `reference/`: a page for each public module of the package.
"""

from __future__ import annotations

import importlib
import logging
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.generate")

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ffgb"
INCLUDED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples/README.md",
    "experiments/README.md": "experiments/README.md",
    "benchmarks/README.md": "benchmarks/README.md",
}
"""Files of the repository outside this folder, and their names on the site."""
REFERENCE = "API reference"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the modules into the navigation."""
    for entry in config.nav or ():
        if REFERENCE in entry:
            entry[REFERENCE] = reference_nav(PACKAGE)
    config.watch += [str(PACKAGE), *(str(ROOT / name) for name in INCLUDED)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, uri in INCLUDED.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for linked in sorted([*(ROOT / "experiments").glob("*/*.png"), *(ROOT / "examples").glob("*.ipynb")]):
        uri = linked.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(linked)))
    files.append(File.generated(config, "settings.md", content=settings_page(settings())))
    for module in modules(PACKAGE):
        files.append(File.generated(config, reference_uri(module), content=reference_page(module)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from paths in the repository to paths on the site."""
    here = page.file.src_uri
    origin = next((name for name, uri in INCLUDED.items() if uri == here), f"docs/{here}")

    def rewritten(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which is not in the repository", origin, target)
        uri = INCLUDED.get(path, path.removeprefix("docs/"))
        return f"]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor})"

    if page.file.generated_by and origin not in INCLUDED:
        return markdown  # made above: there is no such file in the repository
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)", rewritten, markdown)


@final
@dataclass(frozen=True)
class Setting:
    """A setting as the page shows it."""

    name: str
    group: str
    type: str
    default: str
    texts: tuple[str, ...]


def settings() -> Iterator[Setting]:
    """All settings, as the parts that use them declare them."""
    from ffgb.runs.config import SETTINGS
    from ffgb.settings import WORDS

    for each in SETTINGS.values():
        choices = f"One of {', '.join(f'`{choice}`' for choice in each.choices)}." if each.choices else ""
        users = f"Used by {', '.join(f'`{name}`' for name in each.users)}." if each.users else ""
        bounds = f"A number {each.range}." if each.range else ""
        yield Setting(
            name=each.name,
            group=each.group,
            type=WORDS[each.kind],
            default=each.unset if each.default is None and each.unset else _literal(each.default),
            texts=tuple(text for text in (each.help, choices, bounds, users, each.when) if text),
        )


def settings_page(settings: Iterable[Setting]) -> str:
    """The page in Markdown: settings by group, in the order of their declaration."""
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.group, []).append(setting)
    parts = [
        "---\nhide: [navigation]\n---\n\n# Settings",
        "A setting has one name everywhere: `local_steps` is `--local-steps` of `ffgb train`, `local-steps` in a TOML "
        "file (`--config`), and `local_steps` of `ffgb.Config`. `ffgb train --help` also lists the options that are "
        "not part of a run's configuration, such as `--out`, `--resume` and `--workers`.",
    ]
    for group, members in groups.items():
        parts.append(f"## {group}")
        for setting in members:
            option = "--" + setting.name.replace("_", "-")
            parts.append(f"### `{setting.name}`")
            parts.append(f"`{option}` · type `{setting.type}` · default: {setting.default}")
            parts += setting.texts
    return "\n\n".join(parts) + "\n"


def _literal(value: Any) -> str:
    return "none" if value is None else f"`{value!r}`"


def modules(package: Path) -> Iterator[str]:
    """Names of the public modules, packages before what is in them."""
    for file in sorted(package.rglob("*.py"), key=lambda file: file.relative_to(package).with_suffix("").parts):
        parts = file.relative_to(package.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            yield ".".join(parts)


def reference_uri(module: str) -> str:
    """Where the page of a module is."""
    path = module.replace(".", "/")
    is_package = (PACKAGE.parent / path).is_dir()
    return f"reference/{path}/index.md" if is_package else f"reference/{path}.md"


def reference_page(module: str) -> str:
    """The page of a module: names that it takes from other modules are links to these."""
    page = f"# `{module}`\n\n::: {module}\n"
    if not reference_uri(module).endswith("/index.md"):
        return page
    package = importlib.import_module(module)
    named = {name: getattr(package, name) for name in getattr(package, "__all__", ())}
    homes = {name: getattr(value, "__module__", module) for name, value in named.items()}
    elsewhere = [f"[`{name}`][{home}.{name}]" for name, home in homes.items() if home != module]
    if not elsewhere:
        return page
    here = [name for name, home in homes.items() if home == module and not name.startswith("_")]
    return f"{page}    options:\n      members: {here}\n\nFrom its modules: {', '.join(elsewhere)}.\n"


def reference_nav(package: Path) -> list[Any]:
    """The pages of all modules as a tree: a package is a section that begins with its own page."""
    sections: dict[str, list[Any]] = {}
    for module in modules(package):
        parent, _, name = module.rpartition(".")
        if reference_uri(module).endswith("/index.md"):
            sections[module] = [{name: reference_uri(module)}]
            if parent:
                sections[parent].append({name: sections[module]})
        else:
            sections[parent].append({name: reference_uri(module)})
    return sections[package.name]
