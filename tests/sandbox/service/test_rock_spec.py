"""What ROCK's client asks for, as a spec of ours."""

import pytest

from ale_jax.sandbox.service.rock_spec import (
    RockOptions,
    RockStartBody,
    megabytes,
    parse,
    start_request,
)
from tests.rows import each_row
from tests.sandbox.service.rock_wire import START


def asked(**fields):
    return start_request(parse(RockStartBody, fields), "x", RockOptions())


def test_a_spec_of_rocks():
    request = asked(**START | {"memory": "8g", "disk": "50G", "cpus": 2})
    spec = request.spec
    assert (spec.image, spec.user, spec.cpus, spec.memory_mb) == ("ale-shell", "root", 2.0, 8192)
    # /work, /tmp, /dev/shm and 4 directories of the options share the memory.
    assert (spec.files_mb, request.idle_seconds, request.id) == (1170, 300.0, "x")
    assert "/etc" in spec.writable
    kata = asked(image="x", use_kata_runtime=True, pull=None)
    assert (kata.spec.runtime, kata.spec.image, kata.idle_seconds) == ("kata", "x", 21_600.0)


@each_row(
    "fields, told",
    [
        ({"cpus": 20}, "cpus 20 must be at most 16"),
        ({"cpus": 0}, "cpus: "),
        ({"cpus": True}, "cpus: "),
        ({"limit_cpus": 17}, "cpus 17 must be"),
        ({"memory": "65g"}, "memory '65g' is more than"),
        ({"memory": "much"}, "memory 'much' must be a size"),
        ({"disk": "1t"}, "disk '1t' is more than"),
        ({"num_gpus": 1}, "no GPU"),
        ({"registry_username": "me"}, "not pulled"),
        ({"auto_archive_seconds": 5}, "snapshot"),
        ({"image_os": "windows"}, "image_os: .*'linux'"),
        ({"image": "NO image"}, "not a valid image name"),
        ({"image": ""}, "image: "),
        ({"sandbox_id": "../x"}, "sandbox_id: "),
        ({"auto_clear_time_minutes": float("nan")}, "auto_clear_time_minutes: "),
        ({"privileged": True}, "privileged: "),
    ],
)
def test_what_is_not_granted_is_refused_by_name(fields, told):
    with pytest.raises(ValueError, match=told):
        asked(**START | fields)


@each_row(
    "text, size", [("8g", 8192), ("0.5G", 512), ("512m", 512), ("1048577", 2), ("2GiB", 2048)]
)
def test_sizes(text, size):
    assert megabytes("memory", text, 1 << 20) == size
