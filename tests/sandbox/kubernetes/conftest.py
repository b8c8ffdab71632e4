"""A cluster of one node, and the runtime as it is in a pod of it."""

import dataclasses
import io
import tarfile

import pytest

from ale_jax.sandbox import toolkit
from ale_jax.sandbox.kubernetes import cluster
from ale_jax.sandbox.kubernetes.manifest import PACKED, TOOLS
from ale_jax.sandbox.kubernetes.runtime import KubernetesRuntime
from tests.sandbox.conftest import SPEC
from tests.sandbox.kubernetes.api_server import ApiServer
from tests.sandbox.kubernetes.pod_process import why_not
from tests.sandbox.own_certificate import HOST

IMAGE, TOOLS_IMAGE = "registry/folder/image:1", "registry/tools"
POD = dataclasses.replace(SPEC, image=IMAGE, runtime="runsc")
POLICY = {
    "metadata": {"name": "ale-sandboxes"},
    "spec": {
        "podSelector": {"matchLabels": {"ale-jax.sandbox": "sandbox"}},
        "policyTypes": ["Ingress", "Egress"],
    },
}


@pytest.fixture(scope="session")
def image_folders(tmp_path_factory):
    """The files that each image has besides those of /usr."""
    plain, tools = (tmp_path_factory.mktemp(name) for name in ("image", "tools"))
    (plain / "data").mkdir()
    (plain / "data/found").touch()
    _, packed = toolkit.archive()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tools / PACKED[1:], filter="data")
    return {IMAGE: plain, TOOLS_IMAGE: tools}


@pytest.fixture
def server(tmp_path, image_folders, monkeypatch):
    server = ApiServer(tmp_path)
    server.policy, server.images = POLICY, image_folders
    monkeypatch.setattr(cluster, "ACCOUNT", server.account)
    monkeypatch.setenv(TOOLS, TOOLS_IMAGE)
    with server.served() as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", HOST)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        yield server


@pytest.fixture
def pods(server):
    """The runtime. Its pods only run where there is gVisor."""
    return KubernetesRuntime(POD)


@pytest.fixture
def node(server):
    """The server, whose pods run."""
    if reason := why_not():
        pytest.skip(reason)
    return server
