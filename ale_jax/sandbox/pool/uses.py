"""Calls on a sandbox: which one they reach, and what they are told when it dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.pool.api import Cause, SandboxGone, State
from ale_jax.sandbox.pool.lives import Lives
from ale_jax.sandbox.pool.member import Member


class Uses:
    """The way from an id to its sandbox."""

    def __init__(self, lives: Lives):
        self._lives = lives

    def known(self, id: str) -> Member:
        """Whatever is or was under that id. Errors: SandboxGone."""
        if id not in self._lives.members:
            raise SandboxGone(id, None)
        return self._lives.members[id]

    async def _up(self, id: str) -> Member:
        """The member that runs under `id`; waits for one that is being started or re-created."""
        while (member := self.known(id)).life.state is not State.RUNNING:
            if member.is_warm or member.life.cause is not None:
                raise member.gone()
            try:
                await asyncio.shield(member.arrival)
            except SandboxError as error:
                raise member.gone() from error
        return member

    @contextlib.asynccontextmanager
    async def of(self, id: str, generation: int | None) -> AsyncIterator[AsyncSandbox]:
        """The sandbox, for one call. What it says after its death never counts as an answer."""
        member = await self._up(id)
        sandbox, current = member.sandbox, member.generation
        if generation not in (None, current):
            raise SandboxLost(f"generation {generation} of {id!r} is lost; now it is {current}")
        with member.in_use():
            try:
                yield sandbox
            except SandboxLost as error:
                if member.sandbox is sandbox:
                    self._lives.lose(member, str(error))
                if member.life.cause in (None, Cause.LOST):
                    raise
                raise member.gone() from error
        if member.generation != current or member.life.cause is Cause.LOST:
            raise SandboxLost(f"generation {current} of {id!r} was lost meanwhile")
        member.losses = 0
