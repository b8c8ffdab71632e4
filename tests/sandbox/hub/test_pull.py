"""Nothing is fetched unasked; what is asked for is, from a registry that this test plays."""

import gzip
import hashlib
import http.server
import json
import threading

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.hub import daemon
from tests.sandbox.hub.conftest import LABEL, NOTHING

pytestmark = pytest.mark.heavy

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def contents(mark: str) -> dict[str, bytes]:
    """An image of one empty layer: its manifest, and by digest all that it needs."""
    layer = gzip.compress(NOTHING, mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {LABEL: mark.partition("=")[2]}},
            "rootfs": {"type": "layers", "diff_ids": [digest(NOTHING)]},
        }
    ).encode()
    kinds = {"config": config, "layer": layer}
    described = {
        kind: {
            "mediaType": f"application/vnd.docker.{suffix}",
            "size": len(kinds[kind]),
            "digest": digest(kinds[kind]),
        }
        for kind, suffix in (
            ("config", "container.image.v1+json"),
            ("layer", "image.rootfs.diff.tar.gzip"),
        )
    }
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": described["config"],
            "layers": [described["layer"]],
        }
    ).encode()
    return {"manifest": manifest, digest(config): config, digest(layer): layer}


def serve(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def registry(mark):
    """An image's name in a registry on this machine, and the paths that were asked for there."""
    stored, asked = contents(mark), []

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            kind = self.path.split("/")[-2]
            name = self.path.split("/")[-1]
            body = stored["manifest"] if kind == "manifests" else stored.get(name, b"{}")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            if kind == "manifests":
                self.send_header("Content-Type", MANIFEST_TYPE)
                self.send_header("Docker-Content-Digest", digest(body))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = serve(Registry)
    yield f"127.0.0.1:{server.server_port}/hubtest/pulled:1", asked
    server.shutdown()
    server.server_close()


def test_an_image_is_pulled_when_that_was_asked_for_and_once(workshop, api, registry):
    name, asked = registry
    with pytest.raises(SandboxStartError, match="not pulled unasked"):
        workshop.hub.ensure(name)
    assert asked == []
    pulled = workshop.hub.ensure(name, pull="missing")
    assert daemon.find(api, name).id == pulled.image_id
    assert (pulled.name, pulled.reference, pulled.recipe) == (name, name, None)
    asked.clear()
    assert workshop.hub.ensure(name, pull="missing") == workshop.hub.ensure(name) == pulled
    assert asked == []
    daemon.untag(api, name)


def test_a_base_is_pulled_when_that_was_asked_for_and_not_by_the_daemon(workshop, api, registry):
    name, asked = registry
    workshop.dockerfile(start=name)
    with pytest.raises(SandboxStartError, match=f"starts from '{name}'"):
        workshop.hub.ensure(workshop.image)
    assert asked == []
    workshop.hub.ensure(workshop.image, pull="missing")
    daemon.untag(api, name)


def test_a_registry_that_has_it_not_is_told_of(workshop, api, registry):
    name, _ = registry
    host = name.partition("/")[0]
    workshop.hub.state.mkdir()
    with pytest.raises(SandboxStartError, match=f"docker could not pull '{host}0/none'"):
        workshop.hub.ensure(f"{host}0/none", pull="missing")


def test_a_daemon_that_falls_silent_is_given_up(monkeypatch):
    silent = threading.Event()

    class Silent(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"ApiVersion": "1.41"}')

        def do_POST(self):
            silent.wait()

        def log_message(self, *_):
            pass

    server = serve(Silent)
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(daemon, "PULL_QUIET_S", 1.0)
    with pytest.raises(SandboxStartError, match=r"could not pull 'x': .*Read timed out"):
        daemon.pull("x")
    silent.set()
    server.shutdown()
    server.server_close()


def test_a_long_task_that_reports_a_failure_or_takes_too_long_fails():
    assert list(daemon.watched([{"stream": "a"}, {"status": "b"}, {"aux": {}}], 60)) == [
        *("a", "b", ""),
    ]
    with pytest.raises(daemon.DockerException, match="it broke"):
        list(daemon.watched([{"stream": "a"}, {"error": "it broke"}], 60))
    with pytest.raises(daemon.DockerException, match="longer than 0 s"):
        list(daemon.watched([{"stream": "a"}], 0))
