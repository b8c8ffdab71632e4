"""What a killed process leaves at the Docker daemon, which a fake stands for here."""

from docker.errors import NotFound

from ale_jax.sandbox import docker_container, toolkit
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.docker_container import Accounts
from ale_jax.sandbox.docker_runtime import _abandoned
from ale_jax.sandbox.hub import node
from ale_jax.sandbox.hub.daemon import DEADLINE, OWNER, Image


class FakeDaemon:
    """labels: of each container that was created. left: the containers that exist."""

    def __init__(self):
        self.labels: list[dict[str, str]] = []
        self.left: set[str] = set()

    def create_host_config(self, **config):
        return config

    def create_volume(self, name, labels):
        pass

    def create_container(self, image, command, host_config=None, labels=None):
        self.labels.append(labels or {})
        self.left.add(id := f"container-{len(self.labels)}")
        return {"Id": id}

    def remove_container(self, container, force, v=False):
        self.left.remove(container)

    def get_archive(self, container, path):
        raise NotFound("no such file")

    def put_archive(self, container, path, data):
        pass


def test_every_container_that_helps_for_a_moment_is_the_reapers_if_its_owner_is_killed(monkeypatch):
    monkeypatch.setattr(toolkit, "archive", lambda: ("testing", b""))
    api, me = FakeDaemon(), Owner.current()
    Accounts(api).learn("image")
    docker_container.RunnerSockets(api, "image", me)
    toolkit.ensure_volume(api, "image")
    with node.unstarted(api, Image("id", (), {}, 0, 0.0)):
        pass
    assert len(api.labels) == 4 and not api.left
    dead = Owner(me.boot, me.namespace, me.pid, me.start + 1)
    elsewhere = Owner("other-boot", 1, 1, 1)
    for labels in api.labels:
        assert labels[OWNER] == str(me) and not _abandoned(labels)
        assert _abandoned(labels | {OWNER: str(dead)})
        assert not _abandoned(labels | {OWNER: str(elsewhere)})
        assert _abandoned(labels | {OWNER: str(elsewhere), DEADLINE: "1"})
