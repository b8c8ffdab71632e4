"""Strictness for every test: 8 virtual CPU devices, and no silent broadcasting between ranks.

ALE_SKIPS=fail, which .ci/run sets, fails a test that lacks something instead of skipping it.
"""

import os
import signal

# Started in the background by a script, we ignore Ctrl-C, and so would all whom the tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

# Not for want of anything: the test is about the other runtime, another user, or another kernel;
# or about what no machine is asked to have.
ALWAYS_SKIPPED = (
    "containers are Docker's",
    "images are Docker's",
    "users are Docker's",
    "control groups are bubblewrap's",
    "root may write anywhere",
    "needs root to mount",
    "cannot mount",
    "real weights are not part of the project",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and _must_not_skip():
        reason = report.longrepr[2]
        if not any(known in reason for known in ALWAYS_SKIPPED):
            report.outcome = "failed"
            report.longrepr = f"ALE_SKIPS=fail: {reason}"
    return report


def _must_not_skip() -> bool:
    return os.environ.get("ALE_SKIPS") == "fail"
