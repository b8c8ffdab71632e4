"""A sandbox goes on as another machine."""

import asyncio
import socket

import pytest

from ale_jax.sandbox.api import ImageMissing, SandboxStartError
from ale_jax.sandbox.blocking import wait_for

pytestmark = [pytest.mark.each_runtime, pytest.mark.heavy]


def test_another_machine_takes_over_without_what_the_old_one_had(own_box):
    old = own_box.later.machine
    own_box.run("echo x > f; x=3; sleep 99 &")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10.0)
        with own_box.relay(8900, *server.getsockname()):
            own_box.renew()
            assert own_box.run("ls; echo $x; jobs; exec 3<> /dev/tcp/127.0.0.1/8900").output == "\n"
            server.accept()[0].close()
    assert own_box.later.machine is not old and own_box.alive()
    assert not wait_for(old.alive())


def test_the_old_one_stays_where_no_other_can_be_started(own_box):
    async def refuse(spec):
        await asyncio.sleep(0)
        raise SandboxStartError("no room")

    own_box.later._another = refuse
    with pytest.raises(SandboxStartError, match="no room"):
        own_box.renew()
    assert own_box.run("echo up").output == "up\n"


def test_an_image_that_is_not_there_is_named_and_the_old_machine_stays(own_box):
    own_box.run("x=3")
    with pytest.raises(ImageMissing, match="ale-no-such-image"):
        own_box.renew("ale-no-such-image")
    with pytest.raises(ValueError, match="'No Image' is not a valid image name"):
        own_box.renew("No Image")
    own_box.run("x=$x")
    assert own_box.alive() and not own_box.run("true").exit_code
