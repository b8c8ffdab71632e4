"""Times commands in SWE-ReX's sessions, with the Python of an environment that contains it.

    ENVIRONMENT/bin/python swe_rex_commands.py COUNT

Its Docker deployment needs a network between host and container, which our containers do not have.
Its server is therefore started on this machine, and called over HTTP as that deployment does.
Prints one JSON object: milliseconds of each command, "local" in the process and "http" through the
server, and how many have "failed". SWE-ReX reports an error if a prompt takes more than 0.1 s.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import sys
import time

from swerex.deployment.local import LocalDeployment
from swerex.exceptions import CommandTimeoutError
from swerex.runtime.abstract import AbstractRuntime, BashAction, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

START_S = 30.0


class Timings:
    def __init__(self, count: int):
        self.count, self.failed = count, 0

    async def of(self, runtime: AbstractRuntime) -> list[float]:
        """Milliseconds of each command, except for the first one and those that failed."""
        times, session = [], await _open(runtime)
        for _ in range(1 + self.count):
            began = time.perf_counter()
            try:
                done = await runtime.run_in_session(BashAction(command="true", session=session))
            except CommandTimeoutError:
                self.failed += 1
                session = await _open(runtime)  # the old session is out of sync from now on
                continue
            times.append(1e3 * (time.perf_counter() - began))
            assert done.exit_code == 0, done
        return times[1:]


async def main(count: int) -> None:
    timings, deployment = Timings(count), LocalDeployment()
    await deployment.start()
    local = await timings.of(deployment.runtime)
    await deployment.stop()
    http = await _over_http(timings)
    print(json.dumps({"local": local, "http": http, "failed": timings.failed}))


async def _over_http(timings: Timings) -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = secrets.token_hex()
    line = [sys.executable, "-m", "swerex.server", "--host=127.0.0.1", f"--port={port}"]
    with subprocess.Popen([*line, f"--auth-token={token}"], stdout=sys.stderr) as server:
        try:
            remote = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token)
            await remote.wait_until_alive(timeout=START_S)
            return await timings.of(remote)
        finally:
            server.terminate()


async def _open(runtime: AbstractRuntime) -> str:
    name = secrets.token_hex(4)
    request = CreateBashSessionRequest(session=name, startup_timeout=START_S)
    await runtime.create_session(request)
    return name


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
