"""What a tool is, and the toolbox from which a model chooses."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ale_jax.agent.assistant.messages import AssistantCall
from ale_jax.strict_json import read_json

MAX_ARGUMENT_CHARS = 1 << 20


class ToolError(Exception):
    """The call failed, or cannot be made; the message tells the model why."""


@dataclasses.dataclass(frozen=True)
class ToolResult:
    """What a call returned. is_error: the tool worked, and reports a failure. ends: the model is
    done, and the text is its answer. refused: nobody permitted it, so that nothing was done."""

    text: str
    is_error: bool = False
    ends: bool = False
    refused: bool = False


class Tool(Protocol):
    """What a model can call. only_reads: it changes nothing, and nobody has to permit it.
    beside_others: a call of it may begin before another one has ended. parameters: a JSON schema.
    call_id: of the call; what happens in it is reported under this id."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def only_reads(self) -> bool: ...

    @property
    def beside_others(self) -> bool: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    async def run(self, arguments: Mapping[str, Any], call_id: str) -> ToolResult: ...

    async def close(self) -> None: ...


class Arguments(BaseModel):
    """A misspelt argument is an error, and so is a number in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True)


A = TypeVar("A", bound=Arguments)


class TypedTool(abc.ABC, Generic[A]):
    """A tool whose arguments are a pydantic model, from which the schema is made."""

    name: ClassVar[str]
    description: ClassVar[str]
    only_reads: ClassVar[bool] = False
    beside_others: ClassVar[bool] = False
    Arguments: type[A]

    @property
    def parameters(self) -> Mapping[str, Any]:
        schema = self.Arguments.model_json_schema()
        schema.pop("title", None)
        for each in schema["properties"].values():
            each.pop("title", None)  # every token of it costs a small model
        schema.pop("description", None)
        return schema

    async def run(self, arguments: Mapping[str, Any], call_id: str) -> ToolResult:
        try:
            parsed = self.Arguments.model_validate(arguments)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ToolError(f"{where}: {first['msg']}") from None
        return await self.use(parsed, call_id)

    @abc.abstractmethod
    async def use(self, arguments: A, call_id: str) -> ToolResult:
        """Runs the tool, as `Tool.run` does, with arguments that are valid."""

    async def close(self) -> None:
        """Most tools hold nothing."""


class Toolbox:
    """The tools of an agent, by name. Used in an `async with` block, which closes them."""

    def __init__(self, tools: Iterable[Tool]):
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(
                    f"two tools are called {tool.name!r}; rename a server in the config"
                )
            self._tools[tool.name] = tool

    async def __aenter__(self) -> Toolbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        for tool in self._tools.values():
            await tool.close()

    def definitions(self) -> tuple[dict[str, Any], ...]:
        """Returns the tools as the endpoint is told of them."""
        return tuple(
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in self._tools.values()
        )

    def runs_beside_others(self, name: str) -> bool:
        return name in self._tools and self._tools[name].beside_others

    def find(self, name: str) -> Tool:
        """Returns the tool of a name. ToolError if there is none."""
        if name not in self._tools:
            raise ToolError(f"there is no tool {name!r:.80}; there are: {', '.join(self._tools)}")
        return self._tools[name]


def parse_arguments(call: AssistantCall) -> dict[str, Any]:
    """Parses the arguments of a call. ToolError if they are no JSON object. No arguments at all are
    an empty one."""
    if len(call.arguments) > MAX_ARGUMENT_CHARS:
        raise ToolError(f"arguments longer than {MAX_ARGUMENT_CHARS} characters")
    try:
        value, rest = read_json(call.arguments.strip() or "{}")
    except ValueError as error:
        raise ToolError(f"the arguments are no JSON object: {error}") from None
    if not isinstance(value, dict) or rest.strip():
        raise ToolError("the arguments are no JSON object")
    return value
