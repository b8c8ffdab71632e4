"""A mirror with a package each of apt, pip and npm and a repository of git, at a private address of
another machine, which is a network namespace."""

import contextlib
import datetime
import functools
import gzip
import hashlib
import http.server
import io
import ipaddress
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "mirror.example"
KEY = "key.pem"  # outside of what is served
CERTIFICATE = "certificate.pem"
SAYS = "from the mirror"
BASE = "{BASE}"


def addresses() -> tuple[str, str]:
    """Of this host and of the mirror, in a network that nobody else has."""
    first = int(ipaddress.ip_address("10.231.0.0")) + 4 * (os.getpid() % 16384)
    return str(ipaddress.ip_address(first + 1)), str(ipaddress.ip_address(first + 2))


@contextlib.contextmanager
def mirrored(folder: Path):
    """Yields the address of a mirror. All of it is gone with this process."""
    if os.getuid() != 0:
        pytest.skip("needs root to make a network")
    here, there = addresses()
    fill(folder, there)
    line = ["unshare", "--net", sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as machine:
        try:
            assert machine.stdout.readline() == b"serves\n"
            _link(machine.pid, here, there)
            yield there
        finally:
            machine.stdin.close()


def _link(pid: int, here: str, there: str) -> None:
    name = f"mirror{os.getpid()}"
    for words in (
        f"ip link add {name} type veth peer name eth0 netns {pid}",
        f"ip addr add {here}/30 dev {name}",
        f"ip link set {name} up",
        f"nsenter --target={pid} --net ip addr add {there}/30 dev eth0",
        f"nsenter --target={pid} --net ip link set eth0 up",
    ):
        subprocess.run(words.split(), check=True)


def fill(folder: Path, address: str) -> None:
    served = folder / "served"
    for part in (_apt, _pip, _npm, _git):
        at = served / part.__name__[1:]
        at.mkdir(parents=True)
        part(at)
    _certify(folder, address)


def _apt(at: Path) -> None:
    tree = at / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = {
        "Package": "ale-mirrored",
        "Version": "1.0",
        "Architecture": "all",
        "Maintainer": "Nobody <nobody@example.org>",
        "Description": "says where it is from",
    }
    control = "".join(f"{name}: {value}\n" for name, value in fields.items())
    (tree / "DEBIAN/control").write_text(control)
    (tree / "usr/bin").mkdir(parents=True)
    program = tree / "usr/bin/ale-mirrored"
    program.write_text(f"#!/bin/sh\necho {SAYS}\n")
    program.chmod(0o755)
    package = at / "ale-mirrored.deb"
    line = ["dpkg-deb", "--root-owner-group", "--build", tree, package]
    subprocess.run(line, check=True, capture_output=True)
    shutil.rmtree(tree)
    content = package.read_bytes()
    place = f"Filename: ./{package.name}\nSize: {len(content)}\n"
    (at / "Packages").write_text(f"{control}{place}SHA256: {hashlib.sha256(content).hexdigest()}\n")


def _pip(at: Path) -> None:
    name, info = "ale_mirrored-1.0-py3-none-any.whl", "ale_mirrored-1.0.dist-info"
    files = {
        "ale_mirrored.py": f"says = {SAYS!r}\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: ale-mirrored\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    project = at / "simple/ale-mirrored"
    project.mkdir(parents=True)
    with zipfile.ZipFile(project / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    (project / "index.html").write_text(f'<!doctype html><a href="{name}">{name}</a>')


def _npm(at: Path) -> None:
    files = {
        "package/package.json": json.dumps({"name": "ale-mirrored", "version": "1.0.0"}),
        "package/index.js": f"module.exports = {SAYS!r}\n",
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    content = gzip.compress(packed.getvalue())
    (at / "ale-mirrored.tgz").write_bytes(content)
    dist = {"tarball": f"{BASE}/npm/ale-mirrored.tgz", "shasum": hashlib.sha1(content).hexdigest()}
    version = {"name": "ale-mirrored", "version": "1.0.0", "dist": dist}
    about = {
        "name": "ale-mirrored",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": version},
    }
    (at / "ale-mirrored").write_text(json.dumps(about))  # served with the URL in place of BASE


def _git(at: Path) -> None:
    work, bare = at / "work", at / "ale-mirrored.git"
    git = functools.partial(subprocess.run, check=True, capture_output=True)
    git(["git", "init", work])
    (work / "says").write_text(f"{SAYS}\n")
    git(["git", "-C", work, "add", "says"])
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    git(["git", "-C", work, *who, "commit", "-m", "Say it"])
    git(["git", "clone", "--bare", work, bare])
    git(["git", "-C", bare, "update-server-info"])
    shutil.rmtree(work)


def _certify(folder: Path, address: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address(address))]
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / KEY).write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    (folder / CERTIFICATE).write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def serve(folder: Path) -> None:
    """Serves at ports 80 and 443 of every address, until the standard input ends."""
    handler = functools.partial(_Handler, directory=folder / "served")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    for port in (80, 443):
        server = http.server.ThreadingHTTPServer(("", port), handler)
        if port == 443:
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("serves", flush=True)
    sys.stdin.read()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/npm/ale-mirrored":
            return super().do_GET()
        scheme = "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
        text = Path(self.directory, "npm/ale-mirrored").read_text()
        answer = text.replace(BASE, f"{scheme}://{self.headers['Host']}").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        pass


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
