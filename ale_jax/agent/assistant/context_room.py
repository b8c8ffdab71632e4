"""What is done when the conversation has nearly filled the model's context."""

from __future__ import annotations

import dataclasses

from ale_jax.agent.assistant.clipping import Outputs
from ale_jax.agent.assistant.conversation import Conversation
from ale_jax.agent.assistant.endpoint import Endpoint, EndpointError
from ale_jax.agent.assistant.events import Compacted, OutputsMoved, Replied, Tell
from ale_jax.agent.assistant.settings import Features, Limits
from ale_jax.agent.assistant.tools.tool import Toolbox

SUMMARISE = (
    "Summarise this conversation for yourself: you will continue with nothing but your summary and"
    " the newest request. Keep the goal, what was done and found, the names of files, decisions and"
    " their reasons, and what is left to do. Do not call a tool."
)


@dataclasses.dataclass(frozen=True)
class ContextRoom:
    """Makes room in a conversation that has nearly filled the model's context. tell: has to add
    each event to `conversation`."""

    endpoint: Endpoint
    conversation: Conversation
    toolbox: Toolbox
    outputs: Outputs
    features: Features
    limits: Limits
    tell: Tell
    agent: str = ""

    async def make(self) -> None:
        """Makes room if little is left: first without a loss, by references to long outputs, and
        only then by a summary. EndpointError if there is no summary."""
        if not self._is_little():
            return
        if self.features.move_outputs:
            outputs = self.conversation.long_outputs()
            files = {call_id: str(self.outputs.keep(text)) for call_id, text in outputs}
            if files:
                await self.tell(OutputsMoved(agent=self.agent, files=files))
        if self.features.compaction and self._is_little():
            await self.compact()

    async def compact(self) -> None:
        """Replaces the conversation by a summary. EndpointError if the model writes none."""
        messages = [*self.conversation.messages(), {"role": "user", "content": SUMMARISE}]
        # With the tools, though none may be called: the prompt begins as before and is cached.
        tools = self.toolbox.definitions()
        reply = await self.endpoint.reply(messages, tools, _unseen, may_call=False)
        await self.tell(
            Replied(
                agent=self.agent,
                content=reply.content,
                reasoning=reply.reasoning,
                calls=(),
                stop=reply.stop,
                usage=reply.usage,
                for_summary=True,
            )
        )
        if not reply.content.strip():
            raise EndpointError("the context is nearly full, and the model wrote no summary of it")
        await self.tell(Compacted(agent=self.agent, summary=reply.content))

    def _is_little(self) -> bool:
        most = self.limits.context_tokens * self.limits.compact_at
        return self.conversation.num_tokens() >= most


async def _unseen(part: str, text: str) -> None:
    """A summary is for the model."""
