"""A Kubernetes API server with one node, as far as sandboxes use it: it keeps what is posted, runs
pods for real (`pod_process`), and does to them what happens to pods."""

import asyncio
import contextlib
import datetime
import json
import os
import secrets
import shutil
import signal
import threading
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse
from jsonschema import Draft202012Validator

from tests.sandbox.kubernetes.pod_process import write_pod
from tests.sandbox.own_certificate import HOST, write_certificate

SPACE = "sandboxes"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{SPACE}/networkpolicies"
STDIN, STDOUT, STDERR = range(3)
# That of KubeRay has all of a pod in it, and refuses fields that it does not have.
CLUSTER = json.loads((Path(__file__).parents[2] / "launch/raycluster_v1.json").read_text())
HEAD = CLUSTER["properties"]["spec"]["properties"]["headGroupSpec"]["properties"]
VALIDATOR = Draft202012Validator(HEAD["template"]["properties"]["spec"])


class Pod:
    """A pod on the node."""

    def __init__(self, manifest, folder):
        self.manifest, self.folder = manifest, folder
        created = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        self.metadata = manifest["metadata"] | {"creationTimestamp": created}
        self.said = None  # a status that somebody else than the node has given
        self.process, self.stdin = None, None
        self.output, self.pumps = b"", []
        self.attached = None  # to whom output goes, besides the log

    async def start(self, images, network):
        script = write_pod(self.manifest, self.folder, images, network)
        pipes = dict.fromkeys(("stdout", "stderr"), asyncio.subprocess.PIPE)
        line = ["unshare", "--mount", "--propagation", "private", "sh", str(script)]
        # Not asyncio's own, which is a socket.
        stdin, self.stdin = os.pipe()
        self.process = await asyncio.create_subprocess_exec(
            *line, stdin=stdin, **pipes, start_new_session=True
        )
        os.close(stdin)
        ways = ((STDOUT, self.process.stdout), (STDERR, self.process.stderr))
        self.pumps = [asyncio.create_task(self._pump(*way)) for way in ways]

    async def _pump(self, channel, pipe):
        while data := await pipe.read(4096):
            self.output += data
            if self.attached is not None:
                with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                    await self.attached.send_bytes(bytes([channel]) + data)

    def type(self, data):
        while data:
            data = data[os.write(self.stdin, data) :]

    def close_stdin(self):
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def status(self):
        if self.said is not None:
            return self.said
        if self.process is None:
            return {"phase": "Pending"}
        failed = [*self.folder.glob("*/failed")]
        if failed:
            message = (failed[0].parent / "termination-log").read_text()
            ended = {"exitCode": 1, "reason": "Error", "message": message}
            return {"phase": "Failed", "initContainerStatuses": [{"state": {"terminated": ended}}]}
        if self.process.returncode is not None:
            has_failed = self.process.returncode != 0
            reason = "Error" if has_failed else "Completed"
            ended = {"exitCode": self.process.returncode, "reason": reason}
            phase = "Failed" if has_failed else "Succeeded"
            return {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]}
        if (self.folder / "running").exists():
            return {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {}}}]}

    def as_json(self):
        return {"metadata": self.metadata, "spec": self.manifest["spec"], "status": self.status()}

    def evict(self, status):
        self.said = status
        os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self):
        self.close_stdin()
        if self.process and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()


class ApiServer:
    """token: of the account that may call. policy: the network policy; None: there is none.
    images: folders with their files, by name. network: of all pods. hold: says the status of new
    pods, which are not started then."""

    def __init__(self, folder):
        self.folder, self.token = folder, secrets.token_urlsafe(16)
        self.pods, self.posted, self.deleted = {}, [], []
        self.policy, self.images, self.network, self.hold = None, {}, "none", None
        self.refusal = None  # of the next pods
        self.delay, self.asked = 0.0, 0  # of the next pods, and how many were asked for
        self.account = folder / "account"
        self.account.mkdir()
        write_certificate(folder / "own.pem")
        shutil.copy(folder / "own.pem", self.account / "ca.crt")
        (self.account / "namespace").write_text(SPACE)
        (self.account / "token").write_text(self.token + "\n")

    def add(self, name, status, changed):
        """A pod with a label of ours, unless `changed` says otherwise."""
        labels = {"ale-jax.sandbox": "sandbox"}
        pod = Pod({"metadata": {"name": name, "labels": labels}, "spec": {}}, self.folder)
        pod.metadata, pod.said = pod.metadata | changed, status
        self.pods[name] = pod

    def app(self):
        app = FastAPI()

        @app.middleware("http")
        async def check(request, call_next):
            if request.headers.get("authorization") != f"Bearer {self.token}":
                return _status(401, "Unauthorized")
            return await call_next(request)

        @app.post(PODS)
        async def create(request: Request):
            self.asked += 1
            await asyncio.sleep(self.delay)
            if self.refusal:
                return _status(403, self.refusal)
            manifest = await request.json()
            if (broken := next(VALIDATOR.iter_errors(manifest["spec"]), None)) is not None:
                return _status(400, f"{broken.json_path}: {broken.message}")
            name = manifest["metadata"]["name"]
            assert name not in self.pods and (manifest["apiVersion"], manifest["kind"]) == (
                "v1",
                "Pod",
            )
            self.posted.append(manifest)
            (folder := self.folder / name).mkdir()
            pod = self.pods[name] = Pod(manifest, folder)
            pod.said = self.hold
            if self.hold is None:
                await pod.start(self.images, self.network)
            return JSONResponse(pod.as_json(), 201)

        @app.get(PODS)
        async def listed(labelSelector: str):
            key, _, value = labelSelector.partition("=")
            found = [p for p in self.pods.values() if p.metadata["labels"].get(key) == value]
            return {"items": [pod.as_json() for pod in found]}

        @app.get(PODS + "/{name}")
        async def get(name: str):
            if name not in self.pods:
                return _status(404, f'pods "{name}" not found')
            return self.pods[name].as_json()

        @app.get(PODS + "/{name}/log")
        async def log(name: str, container: str, tailLines: int):
            assert container == "sandbox"
            await asyncio.gather(*self.pods[name].pumps)  # it has ended
            lines = self.pods[name].output.splitlines(keepends=True)
            return Response(b"".join(lines[-tailLines:]))

        @app.delete(PODS + "/{name}")
        async def delete(name: str, gracePeriodSeconds: int):
            if name not in self.pods:
                return _status(404, f'pods "{name}" not found')
            pod = self.pods.pop(name)
            self.deleted.append(name)
            await pod.end()
            return pod.as_json()

        @app.get(POLICIES + "/{name}")
        async def policy(name: str):
            if self.policy is None or self.policy["metadata"]["name"] != name:
                return _status(404, f'networkpolicies "{name}" not found')
            return self.policy

        app.websocket(PODS + "/{name}/attach")(self._attach)
        return app

    async def _attach(self, websocket: WebSocket, name: str):
        query = websocket.query_params
        wanted = {"container": "sandbox", "stdin": "true", "stdout": "true", "stderr": "true"}
        known = websocket.headers.get("authorization") == f"Bearer {self.token}"
        process = self.pods[name].process if name in self.pods else None
        runs = process is not None and process.returncode is None
        if not (known and runs and dict(query) == wanted | {"tty": "false"}):
            await websocket.send_denial_response(Response(status_code=403))
            return
        await websocket.accept(subprotocol="v5.channel.k8s.io")
        pod = self.pods[name]

        pod.attached = websocket  # from now on: what was written before is only in the log

        async def into():
            with contextlib.suppress(WebSocketDisconnect, OSError):
                while True:
                    message = await websocket.receive_bytes()
                    assert message[0] == STDIN
                    await asyncio.to_thread(pod.type, message[1:])

        reading = asyncio.create_task(into())
        writing = asyncio.gather(*pod.pumps)
        waits = asyncio.shield(writing)
        await asyncio.wait([reading, waits], return_when=asyncio.FIRST_COMPLETED)
        pod.close_stdin()  # stdinOnce
        pod.attached = None
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await websocket.close()

    @contextlib.contextmanager
    def served(self):
        """Yields its port."""
        config = uvicorn.Config(
            self.app(),
            host=HOST,
            port=0,
            log_level="critical",
            ssl_certfile=str(self.folder / "own.pem"),
            lifespan="off",
            loop="asyncio",  # uvloop gives processes sockets, which gVisor does not take over
            timeout_graceful_shutdown=0,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
        try:
            yield server.servers[0].sockets[0].getsockname()[1]
        finally:
            for pod in self.pods.values():
                if pod.process and pod.process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pod.process.pid, signal.SIGKILL)
            server.should_exit = True
            thread.join()


def _status(code, message):
    return JSONResponse({"kind": "Status", "message": message, "code": code}, code)
