"""`ffgb train`: its options are the settings of all parts, as they declare them (settings.py)."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ffgb.cli.common import (
    INTERRUPTED,
    Display,
    app,
    interruptible,
    print_summary,
    say,
    settings_of,
    was_given,
)
from ffgb.errors import FFGBError
from ffgb.runs.config import SETTINGS, Config, code_in, load_data
from ffgb.runs.directory import Run
from ffgb.runs.training import train as run_training
from ffgb.settings import RUN, Setting
from ffgb.user_code import must_be_named

HELP = "Train across clients, and write a run directory with the model."
TYPES: dict[str, Any] = {"whole": int, "number": float, "switch": bool}
"""Kinds that the command line reads itself; others come as text (`Setting.read`)."""


def _default(setting: Setting) -> str | bool:
    """What the help says that a setting is if it is not given."""
    if setting.unset or setting.default in ((), None):
        return setting.unset or False
    if isinstance(setting.default, tuple):
        return ",".join(map(str, setting.default))
    return "no" if setting.default is False else str(setting.default)


def _words(setting: Setting) -> str:
    choices = "" if not setting.choices or setting.choices[0] in setting.help else f" ({', '.join(setting.choices)})"
    return setting.help.removesuffix(".") + choices + "."


def _option(setting: Setting) -> inspect.Parameter:
    """A setting as a parameter of the command."""
    flag = f"{setting.flag}/{setting.off}" if setting.off else setting.flag
    if setting.name == "one_round":
        flag = f"--one-round/{setting.off}"
    info = typer.Option(
        flag,
        help=_words(setting),
        rich_help_panel=setting.group,
        show_default="residual" if setting.name == "residual" else _default(setting),
        hidden=not setting.common,
    )
    kind: Any = list[str] if setting.name == "data" else TYPES.get(setting.kind, str)
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _of_the_run() -> Iterator[inspect.Parameter]:
    """Options that are no settings: where the run is written, and how it is computed."""

    def parameter(name: str, kind: Any, default: Any, *flags: str, **more: Any) -> inspect.Parameter:
        info = typer.Option(*flags, rich_help_panel=RUN, **more)
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
        )

    yield parameter("out", Path | None, None, "--out", help="The run directory.", show_default="a new one under runs/")
    yield parameter("resume", bool, False, "--resume", help="Continue the run in --out; its configuration is kept.")
    yield parameter(
        "workers", int | None, None, "--workers", help="Worker processes; 0: none, all in this one.",
        show_default="one a core", min=0, hidden=True,
    )  # fmt: skip
    yield parameter(
        "engine", str, "local", "--engine",
        help="local: this machine's cores; flower: Flower's simulation, for clusters under Ray.", hidden=True,
    )  # fmt: skip
    yield parameter(
        "settings_file", Path | None, None, "--config",
        help="A TOML file with these options; what is given here comes first.", show_default=False,
    )  # fmt: skip
    yield parameter("as_json", bool, False, "--json", help="Print the summary as one JSON object, and nothing else.")
    yield parameter(
        "help_all", bool, False, "--help-all", help="Show all options, and end.", is_eager=True, callback=_help_all,
    )  # fmt: skip


def _help_all(ctx: typer.Context, value: bool) -> None:
    if value:
        for parameter in ctx.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        print(ctx.get_help())
        raise typer.Exit


def train(ctx: typer.Context, **values: Any) -> None:
    given = {name: value for name, value in values.items() if name in SETTINGS and was_given(ctx, name)}
    given = {name: SETTINGS[name].read(value) if isinstance(value, str) else value for name, value in given.items()}
    given = settings_of(values["settings_file"]) | given
    out: Path | None = values["out"]
    if values["resume"]:
        if out is None:
            raise FFGBError("--resume needs the run directory to continue: add --out DIR")
        config = _resumed(out, given)
    else:
        config = Config(**given)
        if config.files:  # as absolute paths, so that the run can be evaluated from anywhere
            schema = {} if config.schema is None else {"schema": str(Path(config.schema).absolute())}
            config = Config(**{**given, **schema, "data": tuple(str(Path(file).absolute()) for file in config.data)})
        out = out or _new_directory(config)
    try:
        with interruptible() as interrupted, Display(quiet=values["as_json"]) as display:
            result = run_training(
                config,
                out,
                resume=values["resume"],
                workers=values["workers"],
                engine=values["engine"],
                on_start=display.start,
                on_setup=display.setup,
                on_round=display.round,
                should_stop=lambda: bool(interrupted),
            )
    except KeyboardInterrupt:
        _stopped(out)
    if not result.finished:
        _stopped(out)
    if values["as_json"]:
        print(json.dumps({**result.summary, "run": str(out)}, allow_nan=False))
    else:
        print_summary(result.summary, out)


_context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_context, *map(_option, SETTINGS.values()), *_of_the_run()]
)
train.__annotations__ = {}
train.__doc__ = HELP
app.command()(train)


def _resumed(out: Path, given: dict[str, Any]) -> Any:
    """The run's own configuration.  Flags may repeat it; only the number of rounds may differ."""
    config = Config.from_json(Run.open(out).config)
    _trusted(out, config, given)
    config = dataclasses.replace(config, rounds=given.pop("rounds", config.rounds))
    if config.files and "data" in given:
        given["data"] = tuple(str(Path(file).absolute()) for file in given["data"])
    if given:
        asked = dataclasses.replace(config, **given)
        same_data = (asked.data, asked.target, asked.task) == (config.data, config.target, config.task)
        asked = asked.resolved(load_data(config)) if same_data else asked
        for name in given:
            before, now = getattr(config, name), getattr(asked, name)
            if before != now:
                flag = "--" + name.replace("_", "-")
                raise FFGBError(
                    f"the run in {out} was started with {flag} {_shown(before)}, not {_shown(now)}; "
                    f"leave {flag} out to continue it, or start another run with another --out"
                )
    return config


def _trusted(out: Path, config: Any, given: dict[str, Any]) -> None:
    """Code that the folder names is imported if the user names it too, or says so now."""
    named = code_in(given)
    parts = ("algorithm", "learner", "loss", "map")
    flags = [f"--{name} {getattr(config, name)}" for name in parts if code_in({name: getattr(config, name)})]
    try:
        must_be_named(config.code, named, out, f"if you trust it, name it again: add {' '.join(flags)}")
    except FFGBError as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        say(f"ffgb: {error}", error=True)
        try:
            trusted = typer.confirm("Do you trust it?", err=True)
        except typer.Abort:
            trusted = False
        if not trusted:
            sys.exit(2)


def _stopped(out: Path) -> NoReturn:
    if (out / "config.json").exists():
        say(f"ffgb: stopped; continue with: ffgb train --resume --out {out}", error=True)
    else:
        print("ffgb: stopped before a round was finished; nothing was written", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _shown(value: Any) -> str:
    return ",".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def _new_directory(config: Any) -> Path:
    name = Path(config.data[0]).stem if config.files else config.data[0].replace(":", "-")
    number = 1
    while (out := Path("runs") / f"{name}-{config.algorithm}-{config.learner.replace(':', '.')}-{number}").exists():
        number += 1
    return out
