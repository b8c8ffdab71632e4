"""What a chat template is given beside messages and tools, and which stop tokens a model's authors
name. It is written beside a tokenizer, so that a run that goes on, and what it exports, read the
same."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ale_jax.files import write_json
from ale_jax.model.template_limit import check_operations
from ale_jax.strict_json import read_json

FILE, GENERATION, CONFIG = "chat_settings.json", "generation_config.json", "config.json"
_EOS = "eos_token_id"
# What transformers gives each template, or a conversation has in another place.
GIVEN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
)
TODAY = "strftime_now"
_TODAYS = re.compile(TODAY + r"\s*\(\s*(['\"])([^'\"]*)\1\s*\)")
_IS_NONE = re.compile(r"(\bmessage(?:\.content|\[['\"]content['\"]\])) is(?= (?:not )?none\b)")
# Blocks of transformers' own, which jinja2 does not know.
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


@dataclasses.dataclass(frozen=True)
class TemplateSettings:
    """variables: of the template, by name, such as {"enable_thinking": False}. date: YYYY-MM-DD,
    which templates that write today's are told; "" for the day on which this was made. stop_ids:
    that end replies beside the template's own."""

    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    date: str = ""
    stop_ids: Sequence[int] = ()

    @classmethod
    def of_folder(cls, folder: Path) -> TemplateSettings:
        """Reads what a tokenizer was saved with, or else what a model's authors say of its stop
        tokens. ValueError, with the file, if that is damaged."""
        if (path := folder / FILE).is_file():
            return cls(**_read(path, {"variables": dict, "date": str, "stop_ids": list}))
        return cls(stop_ids=_authors_stop_ids(folder))

    def save(self, folder: Path) -> None:
        """Writes the settings beside a tokenizer."""
        write_json(folder / FILE, dataclasses.asdict(self))

    def with_variables(self, variables: Mapping[str, Any]) -> TemplateSettings:
        """Returns the settings with more variables, or others of the same names."""
        return dataclasses.replace(self, variables={**self.variables, **variables})

    def adapted(self, template: str) -> str:
        """Returns a chat template that writes this date where it would write today's, and that
        finds no content in a message without any, as transformers leaves out what is None.
        ValueError if it writes the time in a form that it makes up."""
        day = datetime.datetime.fromisoformat(self.date or _today())
        text = _TODAYS.sub(lambda found: json.dumps(day.strftime(found[2])), template)
        text = _IS_NONE.sub(r"(\1 | default(none)) is", text)
        if f"{TODAY}(" in text.replace(" ", ""):
            raise ValueError(
                f"the chat template calls {TODAY} with what is no text: no date is kept"
            )
        return text

    def dated(self) -> TemplateSettings:
        """Returns the settings with the date that they stand for now."""
        return dataclasses.replace(self, date=self.date or _today())


NO_SETTINGS = TemplateSettings()


def checked_date(date: str) -> str:
    """Returns the date. ValueError if it is none."""
    try:
        return datetime.date.fromisoformat(date).isoformat() if date else ""
    except ValueError:
        raise ValueError(f"tokenizer.date {date!r:.40} must be a date, as 2026-07-31") from None


def variables_of(template: str) -> frozenset[str]:
    """Returns the names of the variables that a chat template reads, but not those that each
    template is given, such as its tokens. ValueError if it is no template, or computes powers."""
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        tree = environment.parse(_GENERATION.sub("", template))
    except Exception as error:  # of jinja's parser
        raise ValueError(f"the chat template cannot be read: {error!s:.200}") from error
    check_operations(tree)
    # What is set in some branch counts as undeclared, too: unless it is asked for, it is its own.
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    found = find_undeclared_variables(tree) - (own - _asked_for(tree))
    return frozenset(name for name in found if not name.endswith("_token")) - GIVEN


def _asked_for(tree: nodes.Template) -> set[str]:
    """The names of which a template asks whether they are defined, or that have a default."""
    tested = [each.node for each in tree.find_all(nodes.Test) if each.name == "defined"]
    tested += [each.node for each in tree.find_all(nodes.Filter) if each.name in ("default", "d")]
    return {each.name for each in tested if isinstance(each, nodes.Name)}


def check_variables(
    given: Mapping[str, Any], known: frozenset[str], names_marker: Callable[[str], bool]
) -> None:
    """Raises ValueError, with the name, for a variable that the template does not read, and for a
    text that a template would write with a special token in it. known: as from `variables_of`."""
    for name, value in given.items():
        if name not in known:
            raise ValueError(
                f"chat_template_kwargs: the chat template has no variable {name!r:.80}, but "
                f"{', '.join(sorted(known)) or 'none at all'}"
            )
        if names_marker(json.dumps(value, ensure_ascii=False)):
            raise ValueError(f"chat_template_kwargs.{name} names a special token")


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _authors_stop_ids(folder: Path) -> list[int]:
    """Returns the tokens that end replies by a model's files. As for transformers, its config says
    it only if nothing else does."""
    path = folder / GENERATION
    if not path.is_file() and not (path := folder / CONFIG).is_file():
        return []
    found = _read(path, {_EOS: (int, list), "text_config": dict})
    ids = found.get(_EOS, found.get("text_config", {}).get(_EOS))
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(each) is int and each >= 0 for each in ids):
        raise ValueError(f"{path}: {_EOS} {ids!r:.80} must be ids of tokens")
    return ids


def _read(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a JSON file that are listed, each of its kind."""
    try:
        found, rest = read_json(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error!s:.200}") from error
    if rest or not isinstance(found, dict):
        raise ValueError(f"{path} must have one JSON object")
    fields = {name: found[name] for name in kinds if found.get(name) is not None}
    for name, value in fields.items():
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ValueError(f"{path}: {name} {value!r:.80} is of the wrong type")
    return fields
