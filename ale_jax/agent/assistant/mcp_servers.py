"""Tools of MCP servers, which appear as mcp__SERVER__TOOL. What a server sends is hostile."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO, Any

from ale_jax.agent.assistant.clipping import clip, encodable, encodable_json
from ale_jax.agent.assistant.extra import load
from ale_jax.agent.assistant.settings import McpServer
from ale_jax.agent.assistant.tools.tool import ToolError, ToolResult

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_TOOLS, MAX_SCHEMA_CHARS, MAX_DESCRIPTION = 100, 16_384, 2000
MAX_PAGES = 100  # of the list of tools; each may be empty
MAX_RESULT_CHARS = 1 << 20
KEPT_ERRORS = 500  # characters of what a server that failed has written to standard error last


class Connection:
    """One server. A task of its own holds it, for the library wants a connection to be closed in
    the task that opened it, and sessions begin and end in different ones."""

    def __init__(self, server: McpServer):
        self._server = server
        self._client: Any = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done = asyncio.Event()
        self._task = asyncio.create_task(self._hold())

    async def tools(self) -> list[McpTool]:
        """Starts the server and returns its tools. ValueError if it does not start, or offers what
        cannot be used."""
        await self._ready
        found: list[McpTool] = []
        cursor = None
        async with self._failing():
            for _ in range(MAX_PAGES):
                page = await self._client.list_tools(cursor=cursor)
                found += [tool_of(self, self._server.name, each) for each in page.tools]
                if len(found) > MAX_TOOLS:
                    raise self._too_many(MAX_TOOLS, "tools")
                cursor = page.next_cursor
                if not cursor:
                    return found
            raise self._too_many(MAX_PAGES, "pages of tools")

    def _too_many(self, most: int, what: str) -> ValueError:
        return ValueError(
            f"MCP server {self._server.name} offers more than {most} {what}; remove it from the"
            " config"
        )

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Calls a tool of the server. ToolError if the server does not answer."""
        try:
            result = await self._client.call_tool(tool, dict(arguments))
        except Exception as error:  # the library does not say what it raises
            raise ToolError(f"MCP server {self._server.name}: {_told(error)}") from error
        texts = [_text_of(each) for each in result.content]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(encodable_json(result.structured_content), ensure_ascii=False)]
        text = clip(encodable("\n".join(texts)), MAX_RESULT_CHARS)
        return ToolResult(text or "[no output]", is_error=bool(result.is_error))

    async def close(self) -> None:
        self._done.set()
        if not self._ready.done():
            self._task.cancel()
        elif not self._ready.cancelled():
            self._ready.exception()  # was told of another server's, and needs no log
        # How a server ends is of no consequence: everything it was asked for has been answered.
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()

    async def _hold(self) -> None:
        client, server = load("mcp.client.client"), self._server
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                async with (
                    asyncio.timeout(server.seconds) as starting,
                    _transport(server, log) as to,
                ):
                    connected = client.Client(to, read_timeout_seconds=server.seconds)
                    async with connected as self._client:
                        starting.reschedule(None)
                        self._ready.set_result(None)
                        await self._done.wait()
            except Exception as error:  # the library does not say what it raises
                if self._ready.done():
                    raise
                log.seek(max(0, log.seek(0, os.SEEK_END) - KEPT_ERRORS))
                said = " ".join(log.read().split())
                self._ready.set_exception(
                    ValueError(
                        f"MCP server {server.name} ({server.url or server.command[0]}) does not"
                        f" start: {_told(error)}; {said}; correct or remove it in the config"
                    )
                )

    @contextlib.asynccontextmanager
    async def _failing(self):
        try:
            yield
        except ValueError:
            raise
        except Exception as error:  # the library does not say what it raises
            raise ValueError(
                f"MCP server {self._server.name} does not list its tools: {_told(error)}; correct"
                " or remove it in the config"
            ) from error


@contextlib.asynccontextmanager
async def _transport(server: McpServer, log: IO[str]) -> AsyncIterator[Any]:
    """log: takes what a program writes to standard error."""
    if server.url:
        http = load("mcp.client.streamable_http")
        async with http.create_mcp_http_client(headers=dict(server.headers)) as client:
            yield http.streamable_http_client(server.url, http_client=client)
        return
    stdio = load("mcp.client.stdio")
    parameters = stdio.StdioServerParameters(
        command=server.command[0], args=list(server.command[1:]), env=dict(server.env)
    )
    yield stdio.stdio_client(parameters, errlog=log)


@dataclasses.dataclass(frozen=True)
class McpTool:
    """A server's tool. Never `only_reads`: what it says about itself need not be true."""

    connection: Connection
    remote_name: str
    name: str
    description: str
    parameters: Mapping[str, Any]
    only_reads: bool = False
    beside_others: bool = False

    async def run(self, arguments: Mapping[str, Any], call_id: str) -> ToolResult:
        return await self.connection.call(self.remote_name, arguments)

    async def close(self) -> None:
        """The session closes the connection, which several tools share."""


async def connect(servers: Sequence[McpServer], stack: contextlib.AsyncExitStack) -> list[McpTool]:
    """Connects to all servers, and returns their tools. `stack` closes the connections. ValueError
    as for one."""
    if servers:
        load("mcp")
    connections = [Connection(server) for server in servers]
    for connection in connections:
        stack.push_async_callback(connection.close)
    return [tool for connection in connections for tool in await connection.tools()]


def tool_of(connection: Connection, server: str, offered: Any) -> McpTool:
    """Returns what a server offers as a tool of ours. ValueError if models cannot be told of it."""
    name = f"mcp__{server}__{offered.name}"
    if not TOOL_NAME.fullmatch(name):
        raise ValueError(
            f"MCP server {server}: its tool {offered.name!r:.80} cannot be called {name!r:.100}:"
            " models take 64 letters, digits, dashes and underscores; shorten the server's name, or"
            " remove it from the config"
        )
    if len(json.dumps(offered.input_schema)) > MAX_SCHEMA_CHARS:
        raise ValueError(
            f"MCP server {server}: the schema of {offered.name} is too long; remove it"
        )
    description = clip(encodable(offered.description or ""), MAX_DESCRIPTION)
    return McpTool(
        connection, offered.name, name, description, encodable_json(offered.input_schema)
    )


def _text_of(block: Any) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource" and hasattr(block.resource, "text"):
        return block.resource.text
    return f"[{block.type}, which is no text]"


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error!s:.300}" or type(error).__name__
