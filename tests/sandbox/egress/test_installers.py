"""apt, pip, npm and git without the internet: behind a mirror at a private address, and behind a
company's proxy."""

import contextlib
import dataclasses
import io
import socket
import subprocess
import zipfile
from pathlib import Path
from urllib.parse import quote

import pip
import pytest

from ale_jax.config.agent import AgentLimits
from ale_jax.rollout.worker import WorkerSpec, opened_runtime
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.sdk.client import SandboxClient
from ale_jax.sandbox.spec import SandboxSpec
from tests.sandbox.disk.conftest import SPEC as ON_DISK
from tests.sandbox.disk.conftest import disk_runtime  # noqa: F401
from tests.sandbox.egress.company_proxy import PASSWORD, USER, CompanyProxy
from tests.sandbox.egress.mirror import CERTIFICATE, NAME, SAYS, mirrored
from tests.sandbox.egress.world import HTTP
from tests.sandbox.service.test_cli import CLI

pytestmark = [pytest.mark.heavy, pytest.mark.each_runtime]

SPEC = SandboxSpec(memory_mb=1024, pids=128, files_mb=128, command_seconds=60.0, output_bytes=4000)
SCHEMES = ("http", "https")
PIP = "pip.zip"
# Each begins in the sandbox's directory. The sandbox shows little of /etc, and its user may not
# change the rest.
APT = """
top=$PWD; dir=$top/apt-$1
mkdir -p $dir/lists/partial $dir/archives/partial $dir/dpkg && touch $dir/status
export APT_CONFIG=$dir/apt.conf
echo "Dir::State $dir; Dir::State::lists $dir/lists; Dir::State::status $dir/status;
Dir::Cache $dir; Dir::Etc::sourcelist $dir/sources.list; Dir::Etc::sourceparts /nowhere;
APT::Sandbox::User root; Acquire::https::CAInfo $top/certificate.pem;" > $dir/apt.conf
echo "deb [trusted=yes] $1://$2/apt ./" > $dir/sources.list
cd $dir && apt-get -q update && apt-get -q download ale-mirrored &&
    dpkg-deb -x *.deb . && usr/bin/ale-mirrored
"""
PIP_INSTALL = """
export PYTHONPATH=$PWD/pip:$PWD/pip-$1 PIP_INDEX_URL=$1://$2/pip/simple
export PIP_CERT=$PWD/certificate.pem REQUESTS_CA_BUNDLE=$PWD/certificate.pem
export PIP_TRUSTED_HOST=$([ $1 = https ] || echo $2)
python3 -m pip install --no-cache-dir --target $PWD/pip-$1 ale-mirrored &&
    python3 -c 'import ale_mirrored; print(ale_mirrored.says)'
"""
NPM = """
export HOME=$PWD/npm-$1 npm_config_registry=$1://$2/npm/ npm_config_cafile=$PWD/certificate.pem
mkdir $HOME && cd $HOME && npm install --no-audit --no-fund ale-mirrored &&
    node -e 'console.log(require("ale-mirrored"))'
"""
GIT = """
export GIT_SSL_CAINFO=$PWD/certificate.pem
git clone $1://$2/git/ale-mirrored.git git-$1 && cat git-$1/says
"""
INSTALL = {"apt-get": APT, "python3": PIP_INSTALL, "npm": NPM, "git": GIT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mirror")


@pytest.fixture(scope="module")
def mirror(folder):
    with mirrored(folder) as address:
        yield address


@pytest.fixture(scope="module")
def company(mirror, folder):
    """The uplink behind a proxy that knows the mirror by name, and wants a password."""
    proxy = CompanyProxy({NAME: mirror})
    with proxy.open() as port:
        file = folder / "proxy"
        file.write_text(f"{HTTP}{USER}:{quote(PASSWORD, safe='')}@localhost:{port}\n")
        file.chmod(0o600)
        yield Uplink(proxy=str(file))
        assert proxy.heard


def started(runtime, uplink, host):
    spec = dataclasses.replace(SPEC, network=EgressPolicy("allowlist", (host,)))
    return pick_runtime(runtime.name, spec, uplink).start(spec, {"run": "tests"})


@contextlib.contextmanager
def known_here(address):
    """The resolver of this host knows the mirror."""
    resolve = socket.getaddrinfo

    def knowing(host, *args, **options):
        return resolve(address if host == f"{NAME}." else host, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", knowing)
        yield


@pytest.fixture(scope="module", params=["named", "company"])
def box(request, runtime, mirror, folder):
    """A sandbox that reaches the mirror since the operator names it, or through the company's
    proxy, which alone knows its name."""
    with contextlib.ExitStack() as stack:
        if request.param == "named":
            stack.enter_context(known_here(mirror))
            uplink = Uplink(networks=(f"{mirror}/32",))
        else:
            uplink = request.getfixturevalue("company")
        box = stack.enter_context(started(runtime, uplink, NAME))
        certificate = (folder / CERTIFICATE).read_bytes()
        box.write({CERTIFICATE: certificate, PIP: packed(Path(pip.__file__).parent)})
        assert box.exec(f"python3 -m zipfile -e {PIP} pip").exit_code == 0
        yield box


def packed(package: Path) -> bytes:
    """pip as Python can import it, since not every image has one."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in package.rglob("*"):
            if file.is_file() and file.suffix != ".pyc":
                archive.write(file, file.relative_to(package.parent))
    return content.getvalue()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("program", INSTALL)
def test_it_installs_what_the_mirror_has(box, program, scheme):
    if box.exec(f"command -v {program}").exit_code:
        pytest.skip(f"{program} is not in every image")
    done = box.exec(["bash", "-c", INSTALL[program], "bash", scheme, NAME])
    assert (done.exit_code, done.stdout.splitlines()[-1:]) == (0, [SAYS]), done


def test_the_sandbox_has_nothing_of_the_password(box):
    told = box.exec("env; cat /proc/*/environ /proc/*/cmdline").stdout
    assert "3128" in told and PASSWORD not in told and quote(PASSWORD) not in told


def fetch(mirror):
    """A command that succeeds if the mirror answers."""
    return f"python3 -c 'import urllib.request as u; u.urlopen(\"{HTTP}{mirror}/\")'"


def test_a_service_and_a_run_have_the_uplink_of_their_operator(runtime, mirror):
    spec = dataclasses.replace(SPEC, network=EgressPolicy("open"))
    line = [*CLI, "serve", "--port=0", f"--runtime={runtime.name}", f"--uplink-network={mirror}"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as service:
        try:
            with SandboxClient(service.stdout.readline().split()[0]) as client:
                assert client.start(spec).exec(fetch(mirror)).exit_code == 0
        finally:
            service.terminate()
    worker = WorkerSpec(runtime.name, spec, AgentLimits(), (), uplink=Uplink(networks=(mirror,)))
    with opened_runtime(worker).start(spec, {}) as box:
        assert box.exec(fetch(mirror)).exit_code == 0


def test_without_an_operator_who_names_it_the_mirror_is_not_reached(runtime, mirror):
    with started(runtime, DIRECT, mirror) as box:
        asked = box.exec(fetch(mirror))
        assert asked.exit_code and "no public address" in asked.stderr


def test_apt_installs_on_a_disk(disk_runtime, mirror):  # noqa: F811
    spec = dataclasses.replace(ON_DISK, network=EgressPolicy("allowlist", (mirror,)))
    named = Uplink(networks=(mirror,))
    with pick_runtime("bubblewrap", spec, named).start(spec, {"run": "tests"}) as box:
        box.write({"mirror.list": f"deb [trusted=yes] {HTTP}{mirror}/apt ./\n".encode()})
        done = box.exec(
            "rm -rf /etc/apt/sources.list* && mv mirror.list /etc/apt/sources.list"
            " && apt-get -q update && apt-get -q install --yes ale-mirrored && ale-mirrored"
        )
        assert (done.exit_code, done.stdout.splitlines()[-1:]) == (0, [SAYS]), done
