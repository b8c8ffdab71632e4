"""Uses rl-rock as its users do: python rock_program.py URL TOKEN. Not ours to import."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from rock.actions import Command, CreateBashSessionRequest, ReadFileRequest
from rock.sdk.common.exceptions import BadRequestRockError, InternalServerRockError
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig
from rock.sdk.sandbox.model_service.base import ModelService, ModelServiceConfig


def sandbox(**asked):
    headers = {"Authorization": "Bearer " + sys.argv[2]}
    limits = {"memory": "96m", "cpus": 1, "disk": "8m"}
    return Sandbox(SandboxConfig(base_url=sys.argv[1], extra_headers=headers, **limits | asked))


async def main():
    one = sandbox()
    await one.start()
    assert await one.is_alive()
    assert (await one.execute(Command(command=["pwd"], cwd="/tmp"))).stdout == "/tmp\n"
    await one.create_session(CreateBashSessionRequest(session="default"))
    await one.arun("X=5", session="default")
    assert (await one.arun("echo $X", session="default")).output == "5"
    assert (await one.write_file_by_path("text", "/opt/d/x")).success
    assert (await one.read_file(ReadFileRequest(path="/opt/d/x"))).content == "text"
    await raises(Exception, one.arun("ls /nothing", session="default"), "No such file")
    await brings_a_directory(one)
    await answers_an_agent(one)
    await one.stop()
    assert not await one.is_alive()
    await one.restart()
    assert (await one.read_file(ReadFileRequest(path="/opt/d/x"))).content == "text"
    await raises(Exception, one.commit("image:tag", "me", "secret"), "snapshot")
    await one.delete()
    await raises(BadRequestRockError, one.restart(), "no sandbox")
    await raises(BadRequestRockError, sandbox(cpus=20).start(), "cpus 20")
    await raises(InternalServerRockError, sandbox(use_kata_runtime=True).start(), "kata")
    print("all is well")


async def brings_a_directory(one):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "d").mkdir()
        Path(folder, "d", "f").write_bytes(b"\0\xff")
        done = await one.fs.upload_dir(folder, "/opt/there")
    assert done.exit_code == 0, done
    size = await one.execute(Command(command=["stat", "-c", "%s", "/opt/there/d/f"]))
    assert size.stdout == "2\n", size


AGENT = """
import json, urllib.request
for n in range(2):
    body = json.dumps({"n": n}).encode()
    with urllib.request.urlopen("http://127.0.0.1:8080/v1/chat/completions", body) as answer:
        print(len(answer.read()))
"""


async def answers_an_agent(one):
    service = ModelService(one, ModelServiceConfig(install_cmd="true"))
    await service.install()
    await service.start()
    await one.write_file_by_path(AGENT, "/tmp/agent.py")
    begun = "python3 /tmp/agent.py > /tmp/out 2>&1 < /dev/null & echo $!"
    agent = await one.arun(begun, session="default")
    await service.watch_agent(agent.output.strip())
    assert json.loads(await service.anti_call_llm(0)) == {"n": 0}
    assert json.loads(await service.anti_call_llm(1, '{"a": "SESSION_END"}')) == {"n": 1}
    long = json.dumps({"a": "x" * 200_000})  # the client uploads it
    assert await service.anti_call_llm(2, long) == "SESSION_END"
    sizes = await one.execute(Command(command=["cat", "/tmp/out"]))
    assert sizes.stdout == f"20\n{len(long)}\n", sizes
    await service.stop()


async def raises(kind, call, told):
    try:
        await call
    except kind as error:
        assert told in str(error), error
    else:
        raise AssertionError(f"it was to say {told!r}")


asyncio.run(main())
