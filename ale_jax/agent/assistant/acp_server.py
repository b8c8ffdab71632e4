"""The agent as a server of the Agent Client Protocol, which editors speak."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import signal
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ale_jax.agent.assistant.acp_updates import Updates
from ale_jax.agent.assistant.assistant import Assistant, Setup
from ale_jax.agent.assistant.endpoint import EndpointSettings
from ale_jax.agent.assistant.events import Ended
from ale_jax.agent.assistant.extra import load
from ale_jax.agent.assistant.parser import sessions_of, settings_of
from ale_jax.agent.assistant.permissions import MODES
from ale_jax.agent.assistant.sessions import SessionLog, Sessions
from ale_jax.agent.assistant.settings import McpServer, Settings

MAX_REQUEST_CHARS = 1 << 18  # so that it fits in a line of the log
MAX_SESSIONS = 64
STOP_REASONS = {
    "finished": "end_turn",
    "refused": "end_turn",  # by the user; the protocol's "refusal" is the model's
    "max_turns": "max_turn_requests",
    "length": "max_tokens",
}


async def serve(arguments: argparse.Namespace) -> int:
    """Serves the client until it closes our standard input. Returns the exit code."""
    acp = load("acp")
    settings, endpoint = settings_of(arguments)
    agent = AcpAgent(settings, endpoint, sessions_of(arguments))
    # The client ends us by a signal if it does not want to wait; shells should not outlive us.
    serving = asyncio.ensure_future(acp.run_agent(agent, use_unstable_protocol=True))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        return 0
    finally:
        await agent.close()
    return 0


@dataclasses.dataclass
class _Open:
    """A session that the client has opened. work: the request in progress."""

    assistant: Assistant
    updates: Updates
    work: asyncio.Task[Ended] | None = None


class AcpAgent:
    """The protocol's methods, as `acp.Agent` names them. What the client cannot have is an
    `acp.RequestError`."""

    def __init__(self, settings: Settings, endpoint: EndpointSettings, sessions: Sessions):
        self._acp, self._schema = load("acp"), load("acp.schema")
        self._settings, self._endpoint, self._sessions = settings, endpoint, sessions
        self._open: dict[str, _Open] = {}
        self._client: Any = None

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def close(self) -> None:
        for id in list(self._open):
            await self.close_session(id)

    async def initialize(self, protocol_version: int, **_: Any) -> Any:
        schema = self._schema
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, self._acp.PROTOCOL_VERSION),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                mcp_capabilities=schema.McpCapabilities(http=True),
                prompt_capabilities=schema.PromptCapabilities(embedded_context=True),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(),
                    fork=schema.SessionForkCapabilities(),
                    resume=schema.SessionResumeCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                ),
            ),
            agent_info=schema.Implementation(name="ale-agent", version=version("ale-jax")),
        )

    async def authenticate(self, method_id: str, **_: Any) -> None:
        raise self._refused("there is no authentication; set OPENAI_API_KEY")

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> Any:
        log = self._get(self._sessions.create)
        await self._start(log, cwd, mcp_servers)
        return self._schema.NewSessionResponse(session_id=log.id, modes=self._modes(log.id))

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any
    ) -> Any:
        """Tells the client of all that happened, too."""
        await self.resume_session(cwd, session_id, mcp_servers)
        for event in self._get(lambda: self._sessions.events(session_id)):
            await self._open[session_id].updates.replay(event)
        return self._schema.LoadSessionResponse(modes=self._modes(session_id))

    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any
    ) -> Any:
        await self.close_session(session_id)
        await self._start(self._get(lambda: self._sessions.open(session_id)), cwd, mcp_servers)
        return self._schema.ResumeSessionResponse(modes=self._modes(session_id))

    async def fork_session(
        self, session_id: str, cwd: str, mcp_servers: Any = None, **_: Any
    ) -> Any:
        log = self._get(lambda: self._sessions.fork(session_id))
        await self._start(log, cwd, mcp_servers)
        return self._schema.ForkSessionResponse(session_id=log.id, modes=self._modes(log.id))

    async def list_sessions(self, cwd: str | None = None, **_: Any) -> Any:
        found = [each for each in self._sessions.list() if cwd in (None, each.cwd)]
        infos = [
            self._schema.SessionInfo(
                session_id=each.id,
                cwd=each.cwd,
                title=each.title or None,
                updated_at=datetime.fromtimestamp(each.changed, UTC).isoformat(),
            )
            for each in found
        ]
        return self._schema.ListSessionsResponse(sessions=infos)

    async def close_session(self, session_id: str, **_: Any) -> None:
        session = self._open.pop(session_id, None)
        if session is not None:
            await _stop(session)
            await session.assistant.close()

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> None:
        session = self._session(session_id)
        if mode_id not in MODES:
            raise self._refused(f"mode {mode_id!r:.80} must be one of {', '.join(MODES)}")
        session.assistant.mode = mode_id
        await session.updates.mode(mode_id)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> Any:
        session, request = self._session(session_id), self._text_of(prompt)
        if session.work is not None:
            raise self._refused("the session works on another request; cancel it first")
        session.work = asyncio.ensure_future(session.assistant.work_on(request))
        try:
            ended = await session.work
        except asyncio.CancelledError:
            if not session.work.cancelled():
                raise
            return self._schema.PromptResponse(stop_reason="cancelled")
        finally:
            session.work = None
        if ended.reason == "failed":
            raise self._acp.RequestError(-32603, ended.detail)
        return self._schema.PromptResponse(stop_reason=STOP_REASONS[ended.reason])

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session_id in self._open:
            await _stop(self._open[session_id])

    async def _start(self, log: SessionLog, cwd: str, mcp_servers: Any) -> None:
        try:
            if len(self._open) >= MAX_SESSIONS:
                raise ValueError(f"{MAX_SESSIONS} sessions are open; close one")
            folder = Path(cwd)
            if not folder.is_absolute() or not folder.is_dir():
                raise ValueError(f"cwd {cwd!r:.200} must be the absolute path of a directory")
            servers = tuple(_server(each) for each in mcp_servers or ())
        except ValueError as error:
            log.close()
            raise self._refused(str(error)) from error
        settings = dataclasses.replace(
            self._settings, mcp_servers=(*self._settings.mcp_servers, *servers)
        )
        updates = Updates(self._client, log.id, settings.limits.context_tokens, folder)
        setup = Setup(settings, self._endpoint, folder, updates.ask, (updates,))
        try:
            self._open[log.id] = _Open(await Assistant.open(setup, log), updates)
        except ValueError as error:
            raise self._refused(str(error)) from error

    def _session(self, id: str) -> _Open:
        if id not in self._open:
            raise self._refused(f"session {id!r:.80} is not open; load or resume it")
        return self._open[id]

    def _modes(self, id: str) -> Any:
        modes = [
            self._schema.SessionMode(id=mode, name=mode, description=text)
            for mode, text in MODES.items()
        ]
        current = self._open[id].assistant.mode
        return self._schema.SessionModeState(current_mode_id=current, available_modes=modes)

    def _text_of(self, blocks: list[Any]) -> str:
        parts = []
        for block in blocks:
            if block.type == "text":
                parts.append(block.text)
            elif block.type == "resource_link":
                parts.append(f"[{block.name}: {block.uri}]")
            elif block.type == "resource" and hasattr(block.resource, "text"):
                parts.append(f"[{block.resource.uri}]\n{block.resource.text}")
            else:
                raise self._refused(f"content of type {block.type}: there is only text")
        text = "\n\n".join(parts)
        if not text.strip() or len(text) > MAX_REQUEST_CHARS:
            raise self._refused(f"a request must have 1 to {MAX_REQUEST_CHARS} characters")
        return text

    def _get(self, make: Any) -> Any:
        try:
            return make()
        except ValueError as error:
            raise self._refused(str(error)) from error

    def _refused(self, text: str) -> Exception:
        return self._acp.RequestError(-32602, text)


def _server(offered: Any) -> McpServer:
    """ValueError for other servers than programs, and those that are reached over HTTP."""
    if hasattr(offered, "command"):
        env = {each.name: each.value for each in offered.env}
        return McpServer(offered.name, (offered.command, *offered.args), env)
    if offered.type != "http":
        raise ValueError(f"MCP server {offered.name!r:.80}: {offered.type!r:.40} cannot be reached")
    headers = {each.name: each.value for each in offered.headers}
    return McpServer(offered.name, url=offered.url, headers=headers)


async def _stop(session: _Open) -> None:
    """Returns when the request has come to its end."""
    if session.work is not None:
        work = session.work
        work.cancel()
        await asyncio.wait([work])
