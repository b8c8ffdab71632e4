"""Versions, as packages' metadata state them."""

import pytest

from ale_jax.system.doctor.findings import State
from ale_jax.system.doctor.software import check_accelerator, check_versions

JAX = (
    "jaxlib<=0.10.2,>=0.10.1",
    "numpy>=2.0",
    'jaxlib<=0.10.2,>=0.10.2; extra == "tpu"',
    'libtpu==0.0.42.*; extra == "tpu"',
    'jaxlib<=0.10.2,>=0.10.2; extra == "cuda12"',
    'jax-cuda12-plugin[with-cuda]<=0.10.2,>=0.10.2; extra == "cuda12"',
    'kubernetes; extra == "k8s"',
)
GOOD = {"jax": "0.10.2", "jaxlib": "0.10.2", "numpy": "2.3.0", "Python": "3.11.2"}


def test_what_fits_is_listed_and_extras_are_not_asked_for():
    finding = check_versions(["Python>=3.11", *JAX], GOOD.get)
    assert finding.state is State.OK
    assert finding.found == "Python 3.11.2, jax 0.10.2, jaxlib 0.10.2"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"numpy": "1.26.4"}, "numpy is 1.26.4 (needs >=2.0)"),
        ({"numpy": None}, "numpy is missing (needs >=2.0)"),
        ({"Python": "3.10.1"}, "Python is 3.10.1 (needs >=3.11)"),
        ({"jaxlib": "0.10.0"}, "jaxlib is 0.10.0 (needs <=0.10.2,>=0.10.1)"),
    ],
)
def test_a_version_out_of_range_is_named_with_the_range(change, found):
    finding = check_versions(["Python>=3.11", *JAX], (GOOD | change).get)
    assert (finding.state, finding.found) == (State.FAIL, found)
    assert "make install" in finding.remedy


@pytest.mark.parametrize(
    ("package", "version", "wrong", "extra"),
    [
        ("libtpu", "0.0.42.1", None, None),
        ("libtpu", "0.0.52", "libtpu is 0.0.52 (needs ==0.0.42.*)", "tpu"),
        ("jax-cuda12-plugin", "0.10.2", None, None),
        ("jax-cuda12-plugin", "0.9.0", "jax-cuda12-plugin is 0.9.0 (needs", "cuda12"),
    ],
)
def test_the_accelerators_package_is_held_against_the_one_that_jax_names(
    package, version, wrong, extra
):
    finding = check_accelerator(JAX, (GOOD | {package: version}).get)
    if wrong is None:
        assert finding.state is State.OK and f"{package} {version}" in finding.found
    else:
        assert finding.state is State.FAIL and finding.found.startswith(wrong)
        assert f"jax[{extra}]==0.10.2" in finding.remedy


def test_the_accelerators_pair_is_exact_where_jaxs_own_range_is_not():
    installed = GOOD | {"libtpu": "0.0.42", "jaxlib": "0.10.1"}
    assert check_versions(JAX, installed.get).state is State.OK
    finding = check_accelerator(JAX, installed.get)
    assert finding.state is State.FAIL and finding.found.startswith("jaxlib is 0.10.1")


def test_what_is_wrong_without_an_accelerator_is_not_said_twice():
    finding = check_accelerator(JAX, (GOOD | {"libtpu": "0.0.42", "numpy": "1.26.4"}).get)
    assert finding.state is State.OK


def test_no_accelerator_is_no_failure():
    finding = check_accelerator(JAX, GOOD.get)
    assert finding.state is State.OK and "on the CPU" in finding.found
