"""A run's configuration: every setting of every part, and the choices that suit the data where none is given.

Settings are declared by the parts that use them (settings.py).  Here they are collected, checked, read from files, and
resolved: `Config(rounds=3).resolved(dataset)` has a value for each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import pkgutil
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import ffgb.algorithms
import ffgb.core
import ffgb.data
import ffgb.features
import ffgb.federation
import ffgb.learners
import ffgb.protocol
from ffgb._version import __version__
from ffgb.algorithms.catalogue import ALGORITHMS
from ffgb.core.losses import LOSSES
from ffgb.data import SOURCES, Dataset, load, load_sites
from ffgb.data.class_weights import weighted_by_class
from ffgb.data.reading import Reading
from ffgb.errors import FFGBError, SettingError, command, option
from ffgb.learners.catalogue import FAMILIES, LEARNERS
from ffgb.runs.choose_learner import AUTO
from ffgb.runs.private import Agreed, is_private, private_rows, private_schema
from ffgb.runs.resolve import algorithm_class, resolved
from ffgb.runs.starting import SETTINGS as STARTING
from ffgb.runs.starting import starting_file, starting_model
from ffgb.settings import GROUPS, LEARNER, METHOD, RUN, WORDS, Setting
from ffgb.toml_files import did_you_mean, read_toml

PACKAGES = (ffgb.data, ffgb.federation, ffgb.algorithms, ffgb.core, ffgb.learners, ffgb.features, ffgb.protocol)


def code(name: object) -> bool:
    """Is this a name of the user's own code, package.module:Name?"""
    return isinstance(name, str) and ":" in name and not name.endswith(".onnx")


BEFORE: Mapping[str, Any] = {"least": 1}
"""Settings that runs of earlier versions do not name, as these versions behaved: tables had no least counts."""

OWN = (
    Setting(
        "algorithm",
        "text",
        "ffgb; ffgb-c: clipped, for clients that differ; ffgb-l: Lipschitz, for regression; fedavg, fedprox, scaffold, "
        "mime: one net's parameters, averaged; or package.module:Name of your own.",
        METHOD,
        "ffgb",
        common=True,
        choices=tuple(ALGORITHMS),
        accepts=code,
    ),
    Setting("rounds", "whole", "Communication rounds T.", METHOD, unset="by learner", common=True, least=1),
    Setting(
        "stop",
        "switch",
        "End when there is nothing left to learn but noise.",
        METHOD,
        unset="stop, unless rounds are given",
        off="--no-stop",
    ),
    Setting(
        "learner",
        "text",
        f"{', '.join((AUTO, *LEARNERS))}, or package.module:Name of your own.",
        LEARNER,
        AUTO,
        common=True,
        when="auto is a blend for tables, and features for images.",
    ),
    Setting(
        "validation",
        "number",
        "Choose λ and the rounds by the loss on this share of each client's rows, then use all.",
        RUN,
        0.0,
        least=0.0,
        below=1.0,
    ),
    Setting("seed", "whole", "The seed of all random numbers.", RUN, 0, common=True, least=0),
)
"""Settings of a run as a whole."""


def _collected() -> dict[str, Setting]:
    """All settings, by name, in the order of the help."""
    found = [*OWN, *STARTING]
    for package in PACKAGES:
        inside = [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        for module in map(importlib.import_module, (package.__name__, *inside)):
            found += [each for each in vars(module).get("SETTINGS", ()) if isinstance(each, Setting)]
    names = [each.name for each in found]
    assert len(set(names)) == len(names), (
        f"a setting is declared twice: {sorted(n for n in names if names.count(n) > 1)}"
    )
    return {
        each.name: each for group in GROUPS for each in sorted(found, key=lambda s: not s.common) if each.group == group
    }


SETTINGS: Mapping[str, Setting] = _collected()
"""Every setting, by name."""


def _documented() -> str:
    """What `Config` says of itself: each setting with its help, as `ffgb train --help-all` has it."""
    lines = [(_Config.__doc__ or "").rstrip(), "", "    Parameters", "    ----------"]
    for group in GROUPS:
        for each in (each for each in SETTINGS.values() if each.group == group):
            of = f", one of {', '.join(each.choices)}" if each.choices and each.accepts is None else ""
            default = f"{each.default!r}" if each.default is not None else each.unset or "none"
            lines += [f"    {each.name} : {WORDS[each.kind]}{of}; default: {default}", f"        {each.help}"]
    return "\n".join([*lines, "    "])


class _Config:
    """Everything needed to repeat a run.  None means: what suits the data and the learner; `resolved` fills it in.

    >>> Config(rounds=3, learner="trees")
    Config(rounds=3, learner='trees')
    """

    def __repr__(self) -> str:
        """The settings that are not as by default."""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def __post_init__(self: Any) -> None:
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.check(getattr(self, name)))
        if not self.data or not all(self.data):
            raise SettingError("data", "is empty; name a set, or files, one a client")
        if len(self.data) > 1 and (named := [n for n in self.data if n in SOURCES and not Path(n).exists()]):
            raise FFGBError(f"{named[0]} is a set of its own; name one set, or files, one a client")
        if isinstance(self.batch, float) and self.batch == 1.0:
            raise SettingError("batch", "1.0 may mean all points or one; give a share below 1, or a number of points")

    @property
    def files(self: Any) -> bool:
        """The data are files, one a site, rather than a named set."""
        first = self.data[0]
        named = first in SOURCES or first.startswith("openml:")
        return len(self.data) > 1 or (
            not named and (len(Path(first).parts) > 1 or "." in first or Path(first).exists())
        )

    @property
    def code(self: Any) -> list[str]:
        """Names of the user's own code that the run needs."""
        return code_in(vars(self))

    @property
    def exchanges(self: Any) -> int:
        """Rounds of communication: all T of them are one in FFGB.L's one-round form."""
        assert self.rounds is not None  # resolved
        return 1 if self.one_round else self.phases * int(self.rounds) + self.closing

    @property
    def closing(self: Any) -> int:
        """Exchanges after the last round that settle what the result is."""
        return max((int(getattr(kind, "closing", 0)) for kind in FAMILIES.get(self.learner, ())), default=0)

    @property
    def phases(self: Any) -> int:
        """Exchanges in a round."""
        return algorithm_class(self.algorithm).phases

    def given(self: Any) -> dict[str, Any]:
        """The settings that are not as by default."""
        return {name: getattr(self, name) for name, each in SETTINGS.items() if getattr(self, name) != each.default}

    def resolved(self: Any, dataset: Dataset) -> Config:
        """The same configuration with every choice made."""
        config: Config = resolved(self, dataset, {name: each.users for name, each in SETTINGS.items() if each.users})
        return dataclasses.replace(config, asked=self.asked or tuple(self.given()))

    def to_json(self: Any) -> dict[str, Any]:
        """What `config.json` holds: the settings, a fingerprint of every site file, and the versions in use."""
        packages = ("numpy", "scipy", "scikit-learn", "safetensors")
        versions = {"ffgb": __version__, "python": platform.python_version(), **{p: version(p) for p in packages}}
        plan = {"exchanges": self.exchanges} if self.rounds is not None else {}
        return {**dataclasses.asdict(self), **plan, "sha256": self.fingerprints(), "versions": versions}

    def fingerprints(self: Any) -> dict[str, str]:
        """Of the files that it was trained on, and of the model that it started from.

        Not of the files of a private training: whoever knows all rows but one could try what that one is.
        """
        # published sets are checked against their own sums when they are loaded
        data = self.data if self.files and not is_private(self) else ()
        files = [*data, *filter(None, [starting_file(self), self.schema])]
        try:
            return {str(file): hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files}
        except OSError as error:
            raise FFGBError(f"{error.filename} cannot be read ({error.strerror}); is it where it was?") from error

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Config:
        """The configuration in a run's `config.json`, if its site files are still what they were."""
        # What a version before did not know of was as it is by default now, with few exceptions.
        values = {name: content.get(name, BEFORE.get(name)) for name in SETTINGS if name in content or name in BEFORE}
        config = Config(**values, asked=tuple(content.get("asked") or ()), because=str(content.get("because", "")))
        before = content.get("sha256", {})
        for file, now in config.fingerprints().items():
            if now != before.get(file):
                raise FFGBError(f"{file} has changed since the run was started, so it cannot go on; start a new run")
        return config


if TYPE_CHECKING:

    class Config(_Config):
        """Settings by name: declared by the parts that use them, so that a type checker knows none of them."""

        __dataclass_fields__: ClassVar[dict[str, Any]]

        def __init__(self, **settings: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    Config = dataclasses.make_dataclass(
        "Config",
        [
            *((each.name, Any, dataclasses.field(default=each.default)) for each in SETTINGS.values()),
            ("asked", tuple, dataclasses.field(default=(), compare=False)),
            ("because", str, dataclasses.field(default="", compare=False)),
        ],
        bases=(_Config,),
        frozen=True,
        repr=False,
        namespace={"__doc__": _documented(), "__module__": __name__},
    )


def code_in(values: Mapping[str, Any]) -> list[str]:
    """Names of the user's own code in some settings, each once."""
    found = [str(values.get(name) or "") for name in ("algorithm", "learner", "loss")]
    found += str(values.get("map") or "").split("+")
    return list(dict.fromkeys(name for name in found if code(name)))


def load_data(config: Config) -> Dataset:
    """The data a configuration names: a known set, or one file a site."""
    if config.data == ("sites",):
        raise FFGBError(
            f"the rows of this run are at its sites; name files to score its model on with {option('data')}"
        )
    if config.files:
        task = config.task or ("regression" if _regression(config.loss) else None)
        before = starting_model(config)
        schema = private_schema(config)
        agreed = agreed_before(config, before) if schema is None else schema
        dataset = load_sites(
            [Path(p) for p in config.data],
            config.target,
            seed=config.seed,
            task=task or agreed.task,
            classes=agreed.classes,
            table=agreed.table,
            bounded=private_rows(vars(config)),
            categories=config.categories,
            rare=config.rare,
            least=config.least,
            weights=config.weights,
            exposure=config.exposure,
            group=config.group,
            reading=Reading.of(vars(config)),
        )
    else:
        for name in ("weights", "exposure", "group"):
            if getattr(config, name) is not None:
                raise FFGBError(f"{option(name)} names a column of files of your own; {config.data[0]} is a named set")
        dataset = load(config.data[0], seed=config.seed)
        if config.target is not None:
            raise FFGBError(f"{option('target')} is for files of your own; {dataset.name} has its own target")
        if config.task not in (None, dataset.task):
            raise FFGBError(f"{dataset.name} is {dataset.task}, not {config.task}")
    if len(dataset.classes) == 1:
        raise FFGBError(f"all rows of {dataset.name} have the class {dataset.classes[0]!r}; there is nothing to learn")
    return weighted_by_class(dataset, config.class_weight)


def agreed_before(config: Config, model: Any) -> Agreed:
    """Columns and classes of the model that a run starts from, if it does."""
    return Agreed() if model is None else Agreed(model.table, model.classes or None)


def _regression(loss: str) -> bool:
    return loss in LOSSES and not LOSSES[loss].classification


def read_settings(file: Path | None, but: Sequence[str] = ()) -> dict[str, Any]:
    """Options of `ffgb train` in a TOML file, by their names."""
    if file is None:
        return {}
    toml, values = read_toml(file), dict[str, Any]()
    for key, value in toml.values.items():
        name, where = key.replace("-", "_"), toml.at(key)
        if name in but:
            raise FFGBError(
                f"{where}, has {key!r}, which is no option here: the server and each site say it themselves"
            )
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS.keys())
            raise FFGBError(f"{where}, has {key!r}, which is no option{hint}; see: {command('train', help_all=True)}")
        if name in values:
            raise FFGBError(f"{where}: {name} is given twice; remove one")
        try:
            values[name] = SETTINGS[name].check(value)
        except SettingError as error:
            raise FFGBError(f"{where}: {error.worded(lambda name, value: name)}") from error
    return values
