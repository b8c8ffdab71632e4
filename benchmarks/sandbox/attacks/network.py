"""Attacks over the network: out of a sandbox without a network, and past the egress proxy."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.booting import PROXY_PORT
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.runner.wire import MAX_STREAMS
from ale_jax.sandbox.spec import WORK
from benchmarks.sandbox.attacks.attack import Arena, Attack, evidence, failure, refused, require

NETWORK = "network"
RAY_PORTS = (6379, 8265, 10001)  # Ray's control store, dashboard and client server
FETCH = """
import sys, urllib.error, urllib.request
for place in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(f"http://{place}", timeout=20).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
BURST = """
import socket, time
socks = []
for _ in range({count}):
    socks.append(socket.socket())
    socks[-1].setblocking(False)
    socks[-1].connect_ex(("127.0.0.1", {port}))
time.sleep(1)
"""
ABSTRACT = "socket.socket(socket.AF_UNIX).connect('\\0{name}')"
ALLOWED = EgressPolicy("allowlist", ("allowed.invalid",))


def _connects(name: str, address: str, port: int) -> Attack:
    command = f"exec 3<> /dev/tcp/{address}/{port}"
    return refused(f"connects to {name}", NETWORK, command, "a network namespace of its own")


def _interfaces(arena: Arena) -> str:
    listed = arena.box.run("cat /proc/net/dev; echo; cat /proc/net/route").output
    devices, _, routes = listed.partition("\n\n")
    # Some kernels give every namespace devices that are down.
    named = {line.split(":")[0].strip() for line in devices.splitlines()[2:]}
    require("lo" in named and not named & {"eth0", "docker0"}, f"devices {sorted(named)}")
    ways = routes.splitlines()[1:]
    return require(not ways, f"{len(ways)} routes")


def _host_service(arena: Arena) -> str:
    with _listening() as (addresses, port, heard):
        tried = [f"(exec 3<> /dev/tcp/{each}/{port}) && echo through" for each in addresses]
        answer = arena.box.run("; ".join(tried), timeout=5.0).output
        require("through" not in answer and not heard(), f"one of {addresses} was reached")
    return f"{len(addresses)} addresses of the host, and none is reached"


def _host_abstract_socket(arena: Arena) -> str:
    name = "ale-benchmark"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        connect = ABSTRACT.format(name=name)
        result = arena.box.run(f'python3 -c "import socket; {connect}"')
    return require(result.exit_code == 1, evidence(result.output, line=-1))


def _past_the_proxy(arena: Arena) -> str:
    with _listening() as (addresses, port, heard), arena.another(network=ALLOWED) as box:
        places = [f"{each}:{port}" for each in (*addresses, "localhost", "[::1]")]
        places += ["169.254.169.254/latest", "10.0.0.1", "other.invalid", "allowed.invalid:81"]
        places += [f"127.0.0.1:{each}" for each in RAY_PORTS]
        answers = dict(zip(places, _fetch(box, *places), strict=True))
        require({*answers.values()} == {"403"}, f"they are answered {answers}")
        require(not heard(), "the host's service was reached")
        direct = failure(box.run(f"exec 3<> /dev/tcp/{addresses[0]}/{port}", timeout=3.0))
    return f"403 for {len(places)} places; without the proxy: {direct.rpartition(':')[2].strip()}"


def _burst(arena: Arena) -> str:
    count = 2 * MAX_STREAMS
    with arena.another(network=ALLOWED) as box:
        box.write({"burst.py": BURST.format(count=count, port=PROXY_PORT).encode()})
        box.exec("for i in 1 2 3; do python3 burst.py & done; wait")
        answers = _fetch(box, "other.invalid")
    return require(answers == ["403"], f"after {3 * count} connections, the proxy says {answers}")


def _past_a_phase(arena: Arena) -> str:
    with arena.another(network=ALLOWED) as box:
        before = _fetch(box, "allowed.invalid")  # 502, because the proxy does not find this host
        box.set_network(EgressPolicy("none"))
        after = _fetch(box, "allowed.invalid")
    seen = f"{' '.join(before)} before the change, {' '.join(after)} after it"
    return require((before, after) == (["502"], ["403"]), seen)


def _fetch(box: BlockingSandbox, *places: str) -> list[str]:
    """The proxy's HTTP status for each place."""
    box.write({"fetch.py": FETCH.encode()})
    all_of_it = {"no_proxy": "", "NO_PROXY": ""}  # the loopback, too
    return box.exec(["python3", f"{WORK}/fetch.py", *places], env=all_of_it).stdout.split()


@contextlib.contextmanager
def _listening() -> Iterator[tuple[list[str], int, object]]:
    """A service on all of the host's addresses: these, its port, and whether it was reached."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.setblocking(False)

        def heard() -> bool:
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        yield _host_addresses(), listener.getsockname()[1], heard


def _host_addresses() -> list[str]:
    """Loopback, the usual address of Docker's bridge, and the host's address for outgoing calls."""
    addresses = ["127.0.0.1", "172.17.0.1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing, and only chooses a route
        addresses.append(probe.getsockname()[0])
    return list(dict.fromkeys(addresses))


ATTACKS = (
    _connects("its own loopback", "127.0.0.1", 22),
    _connects("the metadata service", "169.254.169.254", 80),
    _connects("a private address", "10.0.0.1", 80),
    _connects("the internet", "8.8.8.8", 53),
    *(_connects(f"Ray's port {port}", "127.0.0.1", port) for port in RAY_PORTS),
    refused("looks up a name", NETWORK, "getent hosts example.org", "no resolver, no route"),
    Attack("finds a device or a route", NETWORK, "a network namespace of its own", _interfaces),
    Attack(
        "reaches a service of the host", NETWORK, "a network namespace of its own", _host_service
    ),
    Attack(
        "reaches an abstract socket of the host",
        NETWORK,
        "a network namespace of its own",
        _host_abstract_socket,
    ),
    Attack(
        "asks the proxy for what is not allowed",
        NETWORK,
        "allowlist, no inner address",
        _past_the_proxy,
    ),
    Attack("floods the proxy with connections", NETWORK, "the runner lets them wait", _burst),
    Attack(
        "keeps the policy of the phase before", NETWORK, "the proxy's policy changes", _past_a_phase
    ),
)
