"""Processes that go on without a caller, who comes back for their output and their end."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.sandbox.api import JobStatus, ProcessResult, SandboxError
from ale_jax.sandbox.exchange import FILES_S, Machine, OutputSink, SandboxProcess, result_of
from ale_jax.sandbox.process_calls import ProcessCalls

# What may be kept of a sandbox's jobs, in this process and in its runner, is 4 MiB.
MAX_JOBS = 16
MAX_KEPT = 128 << 10  # bytes of standard output and of standard error


@dataclasses.dataclass
class _Job:
    process: SandboxProcess
    ending: asyncio.Task[ProcessResult]
    started: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class BackgroundCalls(ProcessCalls):
    """Jobs: processes by name, until they are ended by `end_job` or a reset."""

    def __init__(self, machine: Machine):
        super().__init__(machine)
        self._background: dict[str, _Job] = {}

    async def start_job(
        self,
        name: str,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> None:
        """Starts a process and returns. The other arguments are those of `exec`; timeout: seconds,
        None for no limit.

        Errors: SandboxError if there is a job with that name, or are MAX_JOBS; as of `exec`.
        """
        if name in self._background:
            raise SandboxError(f"job {name!r:.140} exists already: end it, or choose another name")
        if len(self._background) >= MAX_JOBS:
            raise SandboxError(f"there are {MAX_JOBS} jobs: end one, also if its process has ended")
        keep, started = min(self.spec.output_bytes, MAX_KEPT), time.monotonic()
        process = self.spawn(argv, cwd=cwd, env=env, timeout=timeout, user=user, keep=keep)

        async def end() -> ProcessResult:
            answer = await process.communicate(stdin, keep)
            return await self._made(lambda: result_of(*answer, time.monotonic() - started))

        ending = asyncio.get_running_loop().create_task(end())
        self._background[name] = _Job(process, ending, started)
        ending.add_done_callback(_noticed)
        if await self._output_of(self._background[name]) is None:
            try:
                await ending
            except SandboxError:  # it could not be started
                self._background.pop(name, None)
                raise

    async def jobs(self) -> list[str]:
        """Returns the names of all jobs, also of those whose process has ended."""
        return list(self._background)

    async def job(self, name: str, seconds: float = 0.0) -> JobStatus:
        """Returns what a job has written and whether it has ended, after its end or `seconds`.

        Errors: SandboxError if there is no such job; SandboxLost.
        """
        job = self._job(name)
        if seconds > 0:
            await asyncio.wait([job.ending], timeout=seconds)
        if not job.ending.done() and (status := await self._output_of(job)):
            return dataclasses.replace(status, name=name)
        result = await asyncio.shield(job.ending)
        return JobStatus(name=name, **dataclasses.asdict(result))

    async def end_job(self, name: str) -> None:
        """Kills a job and everything that it has started, and forgets it. SandboxError if there is
        no such job."""
        job = self._job(name)
        del self._background[name]
        if job.ending.cancel():  # which has the runner kill it
            await asyncio.wait([job.ending])

    def _forget_jobs(self) -> None:
        """After a reset, which has killed them."""
        self._background.clear()

    def _job(self, name: str) -> _Job:
        if name not in self._background:
            raise SandboxError(f"there is no job {name!r:.140}")
        return self._background[name]

    async def _output_of(self, job: _Job) -> JobStatus | None:
        """The status of a running job, without its name; None if it has ended."""
        sink = OutputSink(2 * MAX_KEPT)
        request = {"do": "peek", "job": job.process.name}
        reply = await self._exchange(request, FILES_S, (), sink)
        if "error" in reply:
            return None
        return await self._made(lambda: _running(sink.data, reply, job.seconds))


def _running(data: bytes, reply: Mapping[str, Any], seconds: float) -> JobStatus:
    size = int(reply["stdout_bytes"])
    ended = {**reply, "exit_code": 0, "timed_out": False}
    values = dataclasses.asdict(result_of((data[:size], data[size:]), ended, seconds))
    return JobStatus(**(values | {"name": "", "exit_code": None}))


def _noticed(ending: asyncio.Task[ProcessResult]) -> None:
    """Whoever asks for the job gets its error; perhaps nobody does."""
    if not ending.cancelled():
        ending.exception()
