"""Skills: folders with a SKILL.md, of which the model is shown name and description, and reads the
rest when it needs it (agentskills' format)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from ale_jax.agent.assistant.tools.tool import Arguments, ToolError, ToolResult, TypedTool

FOLDER = Path(".agents/skills")
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_NAME, MAX_DESCRIPTION = 64, 1024
MAX_FILE_CHARS, MAX_FRONT_MATTER, MAX_SKILLS = 1 << 17, 8192, 64
REMEDY = "correct it, or switch features.skills off"


@dataclasses.dataclass(frozen=True)
class Skill:
    name: str
    description: str
    body: str
    folder: Path


def find_skills(folders: Iterable[Path]) -> dict[str, Skill]:
    """By name; the first folder wins. ValueError with the file's name for what is no skill."""
    found: dict[str, Skill] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/SKILL.md")):
            skill = read_skill(path)
            found.setdefault(skill.name, skill)
    if len(found) > MAX_SKILLS:
        raise ValueError(f"{len(found)} skills; at most {MAX_SKILLS} fit in a prompt")
    return found


def read_skill(path: Path) -> Skill:
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_FILE_CHARS + 1)
    if len(text) > MAX_FILE_CHARS:
        raise ValueError(f"{path}: longer than {MAX_FILE_CHARS} characters; {REMEDY}")
    opening, _, rest = text.partition("---\n")
    header, closed, body = rest.partition("\n---")
    if opening.strip() or not closed or len(header) > MAX_FRONT_MATTER:
        raise ValueError(f"{path}: does not begin with front matter between lines of ---; {REMEDY}")
    try:
        fields = yaml.safe_load(header)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its front matter is no YAML; {REMEDY}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: its front matter has no fields; {REMEDY}")
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or len(name) > MAX_NAME or not NAME.fullmatch(name):
        raise ValueError(f"{path}: name {name!r:.80} must be of a-z, 0-9 and dashes; {REMEDY}")
    if name != path.parent.name:
        raise ValueError(f"{path}: name {name!r} must be that of its folder; {REMEDY}")
    if not isinstance(description, str) or not 0 < len(description) <= MAX_DESCRIPTION:
        raise ValueError(f"{path}: description must have 1 to {MAX_DESCRIPTION} letters; {REMEDY}")
    return Skill(name, " ".join(description.split()), body.strip("-\n"), path.parent.resolve())


class SkillArguments(Arguments):
    name: str


@dataclasses.dataclass(frozen=True)
class SkillTool(TypedTool[SkillArguments]):
    skills: Mapping[str, Skill]

    name = "skill"
    description = "Reads the instructions of a skill."
    only_reads = True
    Arguments = SkillArguments

    async def use(self, arguments: SkillArguments, call_id: str) -> ToolResult:
        skill = self.skills.get(arguments.name)
        if skill is None:
            raise ToolError(f"there is no skill {arguments.name!r:.80}: {', '.join(self.skills)}")
        return ToolResult(f"{skill.body}\n\n[its files are in {skill.folder}]")
