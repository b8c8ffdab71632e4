"""A session that is open: all that an agent consists of, put together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from ale_jax.agent.assistant.clipping import Outputs
from ale_jax.agent.assistant.context_room import ContextRoom
from ale_jax.agent.assistant.conversation import Conversation
from ale_jax.agent.assistant.endpoint import Endpoint, EndpointSettings
from ale_jax.agent.assistant.events import Ended, Event, Started, Tell
from ale_jax.agent.assistant.loop import Agent, CallRunner
from ale_jax.agent.assistant.mcp_servers import McpTool, connect
from ale_jax.agent.assistant.permissions import MODES, Ask, Gatekeeper
from ale_jax.agent.assistant.prompt import how_to_work, nearest_agents_md, system_prompt
from ale_jax.agent.assistant.sessions import SessionLog, cwd_of
from ale_jax.agent.assistant.settings import Settings
from ale_jax.agent.assistant.tools.bash import BashTool
from ale_jax.agent.assistant.tools.files import EditTool, ReadTool, WriteTool
from ale_jax.agent.assistant.tools.search import SearchTool
from ale_jax.agent.assistant.tools.steps import FinishTool, TaskTool
from ale_jax.agent.assistant.tools.tool import Tool, Toolbox, ToolError
from ale_jax.agent.assistant.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class Setup:
    """What an assistant works with. folder: the working directory. ask: None where there is nobody
    to ask for permission. listeners: are told of every event, after it is in the log."""

    settings: Settings
    endpoint: EndpointSettings
    folder: Path
    ask: Ask | None = None
    listeners: Sequence[Tell] = ()


class Assistant:
    """Made by `open`, and closed by `close`; one request at a time."""

    def __init__(self, setup: Setup, log: SessionLog):
        settings = setup.settings
        self.session = log.id
        self.gatekeeper = Gatekeeper(
            settings.permissions.mode,
            settings.permissions.allow,
            settings.permissions.deny,
            setup.ask,
            Workspace(setup.folder),
        )
        self._setup, self._log = setup, log
        self._stack = contextlib.AsyncExitStack()
        self._stack.callback(log.close)
        self._endpoint = Endpoint(setup.endpoint)
        self._stack.push_async_callback(self._endpoint.close)
        self._outputs = Outputs(log.outputs, settings.limits.output_chars)
        events = log.events()
        self._begun_in = cwd_of(events)
        self._conversations = [Conversation("", events)]
        self._agents = {event.agent for event in events}
        self._mcp_tools: list[McpTool] = []
        self._agent: Agent

    @staticmethod
    async def open(setup: Setup, log: SessionLog) -> Assistant:
        """Takes the log over. ValueError for what the user has to correct."""
        assistant = Assistant(setup, log)
        try:
            await assistant._start()
        except ToolError as error:  # a file of the project's that cannot be read
            await assistant.close()
            raise ValueError(f"{setup.folder}: {error}") from error
        except BaseException:
            await assistant.close()
            raise
        return assistant

    async def close(self) -> None:
        await self._stack.aclose()

    @property
    def tools(self) -> tuple[str, ...]:
        definitions = self._agent.toolbox.definitions()
        return tuple(each["function"]["name"] for each in definitions)

    @property
    def mode(self) -> str:
        return self.gatekeeper.mode

    @mode.setter
    def mode(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r:.80} must be one of {', '.join(MODES)}")
        self.gatekeeper.mode = mode

    async def work_on(self, request: str) -> Ended:
        """Lets the main agent work on a request, as `Agent.work_on` does."""
        return await self._agent.work_on(request)

    async def compact(self) -> None:
        """Replaces the conversation by a summary. EndpointError if the model writes none."""
        await self._agent.room.compact()

    async def _start(self) -> None:
        setup = self._setup
        if self._begun_in and Path(self._begun_in).resolve() != setup.folder.resolve():
            raise ValueError(
                f"session {self.session} works in {self._begun_in}, which its messages name,"
                f" and not in {setup.folder}; begin a new session there"
            )
        self._mcp_tools = await connect(setup.settings.mcp_servers, self._stack)
        conversation = self._conversations[0]
        self._agent = await self._new_agent("", conversation, self._stack)
        if not conversation.has_begun:
            await self._tell(self._started("", self._agent.toolbox))

    async def _new_agent(
        self, name: str, conversation: Conversation, stack: contextlib.AsyncExitStack
    ) -> Agent:
        """stack: closes the agent's tools."""
        settings = self._setup.settings
        toolbox = await stack.enter_async_context(Toolbox(self._tools(name)))
        runner = CallRunner(name, toolbox, self.gatekeeper, self._outputs, self._tell)
        room = ContextRoom(
            endpoint=self._endpoint,
            conversation=conversation,
            toolbox=toolbox,
            outputs=self._outputs,
            features=settings.features,
            limits=settings.limits,
            tell=self._tell,
            agent=name,
        )
        return Agent(
            name=name,
            endpoint=self._endpoint,
            conversation=conversation,
            toolbox=toolbox,
            run_call=runner,
            room=room,
            max_turns=settings.limits.turns,
            tell=self._tell,
        )

    async def _delegate(self, call_id: str, task: str) -> Ended:
        """Lets a sub-agent work, with a context and a shell of its own."""
        name = call_id
        while name in self._agents:  # an endpoint may give the calls of sub-agents equal ids
            name += "'"
        conversation = Conversation(name)
        self._agents.add(name)
        self._conversations.append(conversation)
        try:
            async with contextlib.AsyncExitStack() as stack:
                agent = await self._new_agent(name, conversation, stack)
                await self._tell(self._started(name, agent.toolbox))
                return await agent.work_on(task)
        finally:
            self._conversations.remove(conversation)

    def _started(self, name: str, toolbox: Toolbox) -> Started:
        return Started(
            agent=name,
            session=self.session,
            cwd=str(self._setup.folder),
            model=self._setup.endpoint.model,
            mode=self.mode,
            system_prompt=self._system_prompt(),
            tools=toolbox.definitions(),
        )

    def _system_prompt(self) -> str:
        setup, features = self._setup, self._setup.settings.features
        return system_prompt(
            setup.settings.how_to_work or how_to_work(setup.folder, features.finish),
            nearest_agents_md(setup.folder) if features.agents_md else "",
        )

    def _tools(self, name: str) -> Iterator[Tool]:
        """Of a sub-agent, if there is a name."""
        settings, folder = self._setup.settings, self._setup.folder
        features, workspace = settings.features, Workspace(folder, (self._log.outputs,))
        if features.bash:
            yield BashTool(folder, settings.limits.bash_seconds)
        for is_on, file_tool in (
            (features.read, ReadTool),
            (features.write, WriteTool),
            (features.edit, EditTool),
            (features.search, SearchTool),
        ):
            if is_on:
                yield file_tool(workspace)
        if features.task and not name:  # sub-agents of sub-agents would have no end
            yield TaskTool(self._delegate)
        yield from self._mcp_tools
        if features.finish:
            yield FinishTool()

    async def _tell(self, event: Event) -> None:
        if event.stored:
            self._log.append(event)
        for conversation in self._conversations:
            conversation.add(event)
        for listener in self._setup.listeners:
            await listener(event)
