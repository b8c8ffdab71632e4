"""What a killed process leaves at the Docker daemon, which a fake stands for here."""

import pytest
import requests
from docker.errors import APIError, NotFound

from ale_jax.sandbox import docker_container, toolkit
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.docker_container import Accounts
from ale_jax.sandbox.docker_runtime import _abandoned
from ale_jax.sandbox.hub.daemon import DEADLINE, OWNER, unstarted


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
    with unstarted(api, "id"):
        pass
    assert len(api.labels) == 4 and not api.left
    dead = Owner(me.boot, me.namespace, me.pid, me.start + 1)
    elsewhere = Owner("other-boot", 1, 1, 1)
    for labels in api.labels:
        assert labels[OWNER] == str(me) and not _abandoned(labels)
        assert _abandoned(labels | {OWNER: str(dead)})
        assert not _abandoned(labels | {OWNER: str(elsewhere)})
        assert _abandoned(labels | {OWNER: str(elsewhere), DEADLINE: "1"})


class BusyDaemon(FakeDaemon):
    """Somebody else has removed each container, or is removing it, before we do."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def remove_container(self, container, force, v=False):
        response = requests.Response()
        response.status_code = self.answer
        raise (NotFound if self.answer == 404 else APIError)("refused", response=response)


@pytest.mark.parametrize("answer", [404, 409])
def test_what_was_read_from_a_container_that_somebody_removed_is_not_believed(answer):
    accounts = Accounts(BusyDaemon(answer))
    for _ in range(2):  # nothing was kept
        with pytest.raises(SandboxStartError, match="somebody removed container container-"):
            accounts.learn("image")


def test_a_container_that_cannot_be_removed_is_an_error():
    with pytest.raises(APIError, match="500 Server Error"), unstarted(BusyDaemon(500), "image"):
        pass
