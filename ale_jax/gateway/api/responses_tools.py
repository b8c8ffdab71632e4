"""Tools of OpenAI's responses: functions, custom tools, namespaces of both, those of servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ale_jax.gateway.api.fields import MAX_TOOLS, Fields
from ale_jax.gateway.api.tools import (
    CustomFormat,
    allowed_of,
    custom_function,
    full_name,
    function,
    require_few,
    require_offered,
)
from ale_jax.gateway.requests import ApiError


class ResponsesTool(Fields):
    """tools: of a namespace. format: of a custom tool."""

    type: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(max_length=256)] = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: CustomFormat = CustomFormat()
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS, default_factory=list)]


class ToolPlace(Fields):
    type: str = "function"
    name: str = ""
    namespace: str = ""


class ResponsesToolChoice(ToolPlace):
    type: Literal["function", "custom"]
    name: str


class ResponsesAllowed(Fields):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolPlace], Field(max_length=MAX_TOOLS)]


ResponsesChoice = Literal["auto", "none", "required"] | ResponsesToolChoice | ResponsesAllowed


@dataclasses.dataclass(frozen=True)
class Origin:
    """The tool that a function stands for."""

    name: str
    namespace: str = ""
    is_custom: bool = False


def functions(offered: Sequence[ResponsesTool], unseen: list[str]) -> tuple[dict[str, Any], ...]:
    """Returns what the policy can call. unseen: the other tools are added by their types. ApiError
    (400) for a tool without a name, and for two of which a call could not tell which one it is."""
    found: list[dict[str, Any]] = []
    known: dict[str, Origin] = {}
    for tool, namespace, field in _each(offered):
        if tool.type not in ("function", "custom"):
            unseen.append(f"tool {tool.type}")
            continue
        if not tool.name:
            raise ApiError(400, "name is missing", f"{field}.name")
        name, description = full_name(namespace, tool.name), tool.description or ""
        origin = Origin(tool.name, namespace, tool.type == "custom")
        if known.setdefault(name, origin) != origin:
            raise ApiError(400, f"two tools are called {name!r:.80}", f"{field}.name")
        if tool.type == "custom":
            found.append(custom_function(name, description, tool.format))
        else:
            found.append(function(name, description, tool.parameters or {}))
    require_few(found)
    return tuple(found)


def origins(offered: Sequence[ResponsesTool]) -> Mapping[str, Origin]:
    """Returns for the name of each function the tool that it stands for."""
    return {
        full_name(namespace, tool.name): Origin(tool.name, namespace, tool.type == "custom")
        for tool, namespace, _ in _each(offered)
    }


def choice_of(
    choice: ResponsesChoice, tools: Sequence[dict[str, Any]]
) -> tuple[str, tuple[str, ...] | None]:
    """Returns which function is to be called, and which ones are allowed; None for all. ApiError
    (400) if there are no such ones."""
    if isinstance(choice, str):
        return choice, None
    if isinstance(choice, ResponsesAllowed):
        names = [full_name(tool.namespace, tool.name) for tool in choice.tools]
        return choice.mode, allowed_of(names, tools)
    return require_offered(full_name(choice.namespace, choice.name), tools), None


def told_choice(choice: ResponsesChoice) -> Any:
    """Returns the choice as the response repeats it."""
    if isinstance(choice, str):
        return choice
    return choice.model_dump(exclude_defaults=True) | {"type": choice.type}


def told_tools(offered: Sequence[ResponsesTool]) -> list[dict[str, Any]]:
    """Returns the tools that the policy can call as the response repeats them."""
    return [
        _told(tool)
        for tool in offered
        if tool.type in ("function", "custom") or (tool.type == "namespace" and tool.tools)
    ]


def _told(tool: ResponsesTool) -> dict[str, Any]:
    told: dict[str, Any] = {"type": tool.type, "name": tool.name, "description": tool.description}
    match tool.type:
        case "namespace":
            told["description"] = tool.description or ""
            return told | {"tools": told_tools(tool.tools)}
        case "custom":
            return told
    return told | {"parameters": tool.parameters, "strict": False}


def _each(offered: Sequence[ResponsesTool]) -> Iterator[tuple[ResponsesTool, str, str]]:
    """Each tool, the namespace that it is in, and its field. A namespace is none itself."""
    for number, tool in enumerate(offered):
        field = f"tools.{number}"
        if tool.type != "namespace":
            yield tool, "", field
            continue
        for inner_number, inner in enumerate(tool.tools):
            yield inner, tool.name, f"{field}.tools.{inner_number}"
