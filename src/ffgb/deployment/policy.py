"""What a site's owner allows, whatever a server asks: a file that belongs to the site, and that only its owner changes.

# policy.toml
secure = true                  # answer under masks alone
least_sites = 3                # participants of a total
missing_sites = false          # every site is in every total
honest_server = false          # a server may lie: more than two thirds of the sites must answer a question
least_rows = 10                # rows of this site
least_class = 1                # rows of each class here
least_cell = 1                 # rows in a cell of a histogram here (without masks)
least = 10                     # rows, of all sites, in each interval, category and leaf
parameters_per_row = 50        # numbers of the model for each row of all sites
trainings = 3
reopen = false                 # show this site's part of a total that is impossible
epsilon = 2.0                  # of this file, in all trainings together (private trainings); delta, colluders
refuse = ["GramOf"]            # kinds of questions that are never answered
[participants]                 # who the others may be, by the fingerprints of their keys
north = "0c1d:…"
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from ffgb.deployment.words import OTHER, WORDS
from ffgb.errors import FFGBError
from ffgb.toml_files import did_you_mean, read_toml


@final
@dataclass(frozen=True)
class Policy:
    """A site's rules; the defaults are those of a careful owner."""

    secure: bool = True
    """It answers under masks alone."""
    least_sites: int = 3
    missing_sites: bool = False
    """A total may come out without some sites; otherwise all must answer."""
    honest_server: bool = False
    """The server is trusted to follow the protocol: then more than half of the sites must answer, not two thirds."""
    least_rows: int = 10
    """Of this site: with fewer it does not take part."""
    least_class: int = 1
    least_cell: int = 1
    least: int = 10
    """Rows of all sites in each interval, category and leaf."""
    parameters_per_row: float = 50.0
    """Of the model, for each row of all sites."""
    trainings: int = 3
    """With one server: one, and others if it must be done again."""
    reopen: bool = False
    """If a total is impossible, the masks of that one question may be given away, and the run ends: it is found out
    whose part is wrong, and the server sees the parts of all."""
    epsilon: float = 0.0
    """The privacy budget of a data file, in all trainings together; 0: that of the first private training agreed to."""
    delta: float = 1e-5
    colluders: int = 1
    """Participants that may tell the server their shares of the noise."""
    refuse: tuple[str, ...] = ()
    participants: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the keys of those who may take part, by name; none: as they are when first met."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value, default = getattr(self, each.name), _DEFAULTS[each.name]
            kinds = (int, float) if isinstance(default, float) else type(default)
            if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(default, bool)):
                raise FFGBError(f"{each.name} is {_WORDS[type(default)]}, not {value!r}")
            small = each.name in ("epsilon", "delta")
            if each.name == "delta" and not 0.0 <= value < 1.0:
                raise FFGBError(f"delta is a number from 0 below 1, not {value:g}")
            if small and not 0.0 <= value <= 50.0:
                raise FFGBError(f"{each.name} is a number from 0 to 50, not {value:g}")
            if isinstance(value, int | float) and not isinstance(value, bool) and not small and value < 1:
                raise FFGBError(f"{each.name} is at least 1, not {value:g}")
        self._check_names()
        if self.least_sites < 3:
            raise FFGBError("least_sites is at least 3: of two sites each knows the other's part from the total")

    def _check_names(self) -> None:
        """A question that is misspelt would be answered, and a key that is misspelt would keep everyone out."""
        for name in self.refuse:
            if name not in QUESTIONS:
                hint = did_you_mean(name, QUESTIONS) if isinstance(name, str) else ""
                raise FFGBError(
                    f"refuse has {name!r}, which is no kind of question{hint}; kinds are {', '.join(QUESTIONS)}"
                )
        for name, mark in self.participants.items():
            if not isinstance(mark, str) or _FINGERPRINT.fullmatch(mark) is None:
                raise FFGBError(
                    f"participants has {mark!r} for {name!r}, which is no fingerprint of a key: eight groups of four "
                    "digits or letters a to f, as ffgb prints them"
                )
        if self.participants and len(self.participants) + 1 < self.least_sites:
            raise FFGBError(
                f"participants names {len(self.participants)} other sites, and least_sites is {self.least_sites}: no "
                "training could be; name more sites, or lower least_sites"
            )

    @staticmethod
    def read(file: Path) -> Policy:
        """The rules in a file; an FFGBError names what is wrong."""
        toml = read_toml(file)
        known = {each.name for each in dataclasses.fields(Policy)}
        for name in toml.values:
            if name not in known:
                hint = did_you_mean(name, known)
                rules = ", ".join(sorted(known))
                raise FFGBError(f"{toml.at(name)}, has {name!r}, which is no rule{hint}; rules are {rules}")
        try:
            given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in toml.values.items()}
            return Policy(**given)
        except FFGBError as error:
            setting = str(error).partition(" ")[0]
            named = [n for n in _names(toml.values.get(setting)) if f" for {n!r}," in str(error)]
            raise FFGBError(f"{toml.at(setting, *named[:1])}: {error}") from error

    def in_words(self) -> list[str]:
        """The rules as sentences, for whoever must allow them."""
        masks = (
            f"Sums leave this site only under masks: the server learns sums over at least {self.least_sites} sites."
            if self.secure
            else "Sums may leave this site without masks: the server then sees the sums of this site alone, and can "
            "compute rows from them."
        )
        server = "Every site must be in every total."
        if self.missing_sites:
            server = (
                "Sites may be missing in a total.  The server is trusted to follow the protocol: more than half of the "
                "sites must be in it."
                if self.honest_server
                else "Sites may be missing in a total.  The server is not trusted: more than two thirds must be in it."
            )
        who = (
            f"The other participants may only be {', '.join(sorted(self.participants))}, with the keys in the policy."
            if self.participants
            else "The other participants are shown with the fingerprints of their keys.  Afterwards no others may take "
            "part, and none with another key."
        )
        return [
            masks,
            *([server, who] if self.secure else []),
            f"This site takes part with at least {self.least_rows} rows.",
            f"Each interval, category and leaf has at least {self.least} rows of all sites together.",
            f"The model has at most {self.parameters_per_row:g} numbers for each row of all sites.",
            *(["If a total is impossible, the server may see this site's part of it, once."] if self.reopen else []),
            f"It takes part in up to {self.trainings} training{'s' * (self.trainings != 1)} with this server; "
            "an analysis counts as one.",
            *([f"It never answers {', '.join(self.refuse)}."] if self.refuse else []),
        ]


_DEFAULTS: Mapping[str, Any] = {
    **{each.name: each.default for each in dataclasses.fields(Policy) if each.name != "participants"},
    "participants": {},
}


def _names(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


QUESTIONS: Sequence[str] = sorted(
    name.removeprefix("question ") for name in (*WORDS, *OTHER) if name.startswith("question ")
)
"""Kinds that a site may refuse."""
_FINGERPRINT = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")
_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "a list of names",
    dict: "a table of names and fingerprints",
}
