"""A spec travels as JSON and refuses what it does not know; runtimes hold sandboxes to it."""

import dataclasses
import json

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.spec import WORK, SandboxSpec
from tests.rows import each_row
from tests.sandbox.conftest import SPEC

pytestmark = pytest.mark.each_runtime

FULL = SandboxSpec(
    user="root",
    cpus=0.5,
    writable=("/app",),
    env=(("COLOUR", "green"), ("EMPTY", "")),
    network=EgressPolicy("allowlist", ("pypi.org", "*.example.org:8443")),
)


@pytest.mark.parametrize("spec", [SandboxSpec(), FULL], ids=["default", "full"])
def test_a_spec_comes_back_from_json(spec):
    assert SandboxSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert SandboxSpec.from_json(json.loads(json.dumps(spec.to_json()))).key() == spec.key()


def test_what_is_left_out_has_its_default():
    assert SandboxSpec.from_json({"memory_mb": 99}) == SandboxSpec(memory_mb=99)


@each_row(
    "values, answer",
    [
        ({"memory": 1}, "no field 'memory': did you mean 'memory_mb'"),
        ({"memory_mb": "1"}, "memory_mb '1' must be int"),
        ({"memory_mb": 1}, "memory_mb 1 must be in \\[16, 1073741824\\]"),
        ({"files_mb": 86}, "files_mb 86 for each of 3 .* memory_mb 256.* at most 85, or .* 258 MB"),
        ({"pids": True}, "pids True must be int"),
        ({"cpus": -1}, "cpus -1.0 must be in .0, 65536.: 0 is no limit"),
        ({"cpus": 1e-9}, "cpus 1e-09 must be 0 .no limit. or at least 0.01"),
        ({"cpus": float("nan")}, "cpus nan must be in .0"),
        ({"command_seconds": 0}, "command_seconds 0.0 must be above 0"),
        ({"user": "nobody"}, "user 'nobody' is unknown: choose one of agent, root"),
        ({"runtime": "lxc"}, "runtime 'lxc' is unknown: choose one of runc, runsc, kata"),
        ({"image": "../x"}, "image '../x' is not a valid image name"),
        ({"writable": "/app"}, "writable '/app' must be a list"),
        ({"writable": ["app"]}, "writable 'app' must be an absolute path"),
        ({"writable": ["/app/../etc"]}, "must be an absolute path"),
        ({"writable": ["/"]}, "must be an absolute path"),
        ({"writable": ["/usr"]}, "'/usr' is part of the system"),
        ({"writable": ["/lib64"]}, "'/lib64' is part of the system"),
        ({"writable": ["/lib32"]}, "'/lib32' is part of the system"),
        ({"writable": ["/libx32"]}, "'/libx32' is part of the system"),
        ({"writable": ["/dev/x"]}, "'/dev/x' is part of the system"),
        ({"env": [["A"]]}, r"\['A'\] must have 2 items"),
        ({"env": [["A-B", "x"]]}, "'A-B' must be a variable name"),
        ({"env": [["A", "x\0"]]}, "'A' must be a variable name with a value without NUL"),
        ({"env": [["A", "\udc80"]]}, "'A' must be .* without NUL and lone surrogates"),
        ({"env": [["A", "x" * 40000], ["B", "x" * 40000]]}, r"80\d{3} bytes .* at most 65536"),
        ({"env": [["A", "\1" * 20000]]}, r"120\d{3} bytes of JSON: use at most 65536"),
        ({"writable": ["/a\0b"]}, r"'/a\\x00b' has a NUL or a lone surrogate: rename it"),
        ({"writable": ["/a\ud800"]}, r"'/a\\ud800' has a NUL or a lone surrogate"),
        ({"writable": ["//usr"]}, "'//usr' must be an absolute path below /"),
        ({"writable": [f"/{'x' * 70000}"]}, r"70\d{3} bytes of JSON: use at most 65536"),
        ({"disk_mb": 10**303}, "disk_mb 10000.* must be in .0, 1073741824"),
        ({"memory_mb": 1 << 31}, "memory_mb 2147483648 must be in .16, 1073741824"),
        ({"pids": 1 << 23}, "pids 8388608 must be in .8, 4194304"),
        ({"cpus": 1e308}, r"cpus 1e\+308 must be in .0, 65536"),
        ({"network": {"mode": "some"}}, "egress mode 'some'"),
        ({"network": {"modes": "none"}}, "network has no field 'modes': did you mean 'mode'"),
        ([], "must be an object"),
    ],
    ids=lambda cell: ascii(cell)[:80],
)
def test_what_makes_no_sense_is_refused(values, answer):
    with pytest.raises(ValueError, match=answer):
        SandboxSpec.from_json(values)


def test_shared_memory_is_writable_but_no_part_of_what_is_saved():
    assert SandboxSpec(writable=("/dev/shm",)).parts == SandboxSpec().parts


@pytest.fixture(scope="module")
def root_box(runtime):
    spec = dataclasses.replace(
        SPEC, user="root", writable=("/app",), env=(("COLOUR", "green"),), cpus=0.5
    )
    with runtime.start(spec, {"run": "tests"}) as sandbox:
        yield sandbox


@pytest.mark.heavy
def test_root_has_six_capabilities_and_no_way_to_more(root_box):
    status = root_box.run("id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status").output
    uid, *lines = status.splitlines()
    values = {line.split()[0]: line.split()[1] for line in lines}
    assert uid == "0" and values["NoNewPrivs:"] == "1"
    expected = sum(1 << number for number in (0, 1, 3, 5, 6, 7))
    assert int(values["CapEff:"], 16) == int(values["CapBnd:"], 16) == expected


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /app",
        "unshare --mount true",
        "mknod /app/device c 1 3",
        "touch /usr/x",
        "touch /etc/x",
        "echo 1 > /proc/sys/kernel/panic",
        "chroot / true",
    ],
)
def test_root_is_still_confined(root_box, command):
    assert root_box.run(command).exit_code != 0


def test_root_cannot_look_into_the_runner(root_box):
    assert "readline" in root_box.run("tr '\\0' ' ' < /proc/1/cmdline").output
    for path in ("fd/0", "fd/1", "mem", "environ"):
        assert root_box.run(f"timeout 2 head -c 1 /proc/1/{path}").exit_code == 1, path
    root_box.run("kill -9 1; kill -STOP 1")
    assert root_box.run("echo alive").output == "alive\n"


def test_writable_directories_are_sized(root_box):
    result = root_box.run("dd if=/dev/zero of=/app/big bs=1M count=100; rm /app/big")
    assert "No space left" in result.output


def test_writable_directories_are_as_new_after_a_reset(root_box):
    root_box.run("echo 1 > /app/left; mkdir /app/d")
    root_box.reset()
    assert root_box.run("ls /app").output == ""


def test_writable_directories_are_in_snapshots(root_box):
    root_box.run("echo kept > /app/kept; chmod 700 /app")
    snapshot = root_box.snapshot()
    root_box.reset()
    root_box.restore(snapshot)
    assert root_box.run("cat /app/kept; stat -c %a /app").output == "kept\n700\n"


def test_variables_are_there_in_sessions_and_jobs(root_box):
    assert root_box.run("echo $COLOUR").output == "green\n"
    assert root_box.exec("echo $COLOUR").stdout == "green\n"


def test_cpus_are_limited(root_box):
    spin = "import time; end = time.time() + 1\nwhile time.time() < end: pass\n"
    result = root_box.exec(["python3", "-c", f"{spin}print(time.process_time())"])
    assert float(result.stdout) < 0.8


def test_a_runtime_that_is_not_there_is_refused(runtime):
    with pytest.raises(SandboxStartError, match="no runtime 'kata'"):
        runtime.start(dataclasses.replace(SPEC, runtime="kata"), {})


FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(f"http://{sys.argv[1]}", timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest.fixture(scope="module")
def online_box(runtime):
    policy = EgressPolicy("allowlist", ("allowed.invalid",))
    with runtime.start(dataclasses.replace(SPEC, network=policy), {}) as sandbox:
        sandbox.write({"fetch.py": FETCH.encode()})
        yield sandbox


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("place", "answer"),
    [
        ("other.invalid/", "403"),
        ("allowed.invalid:81/", "403"),
        ("127.0.0.1:80/", "403"),
        ("169.254.169.254/latest", "403"),
        ("allowed.invalid/", "502"),  # permitted, and there is no such host
    ],
)
def test_the_proxy_is_the_only_way_out(online_box, place, answer):
    all_of_it = {"no_proxy": "", "NO_PROXY": ""}  # the loopback, too
    fetched = online_box.exec(["python3", f"{WORK}/fetch.py", place], env=all_of_it)
    assert fetched.stdout.startswith(answer), fetched


def test_the_policy_may_change_between_phases(online_box):
    def fetch():
        return online_box.exec(["python3", f"{WORK}/fetch.py", "allowed.invalid/"]).stdout[:3]

    online_box.set_network(EgressPolicy("none"))
    assert fetch() == "403"
    online_box.set_network(EgressPolicy("allowlist", ("allowed.invalid",)))
    assert fetch() == "502"


def test_a_network_cannot_be_had_later(box):
    with pytest.raises(ValueError, match="start it with spec"):
        box.set_network(EgressPolicy("open"))
