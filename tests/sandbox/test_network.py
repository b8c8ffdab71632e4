"""A sandbox with a network: it trusts the usual certificates."""

import dataclasses

import pytest

from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.spec import ETC
from tests.sandbox.conftest import SPEC

pytestmark = pytest.mark.each_runtime

OPEN = EgressPolicy("allowlist", ("example.invalid",))
# Certificates are trusted one by one as they are needed, so the file is asked instead of the count.
TRUSTED = """
import os, ssl
found = ssl.get_default_verify_paths()
bundle = os.environ.get(found.openssl_cafile_env) or found.cafile
context = ssl.create_default_context(cafile=bundle)
print(context.cert_store_stats()["x509_ca"] > 50)
"""


@pytest.fixture(scope="module", params=["agent", "root with its own /etc"])
def online(runtime, request):
    spec = dataclasses.replace(SPEC, network=OPEN)
    if request.param != "agent":
        spec = dataclasses.replace(spec, user="root", writable=(ETC,))
    with runtime.start(spec, {"run": "tests"}) as sandbox:
        yield sandbox


@pytest.mark.heavy
def test_python_trusts_the_usual_authorities(online):
    online.reset()
    online.write({"trusted.py": TRUSTED.encode()})
    assert online.run("python3 trusted.py").output == "True\n"


def test_a_sandbox_without_a_network_has_no_certificates_of_the_host(box):
    assert box.run("env | grep -c CERT; ls /etc/ssl").exit_code != 0
