"""Runs tests with pytest inside a sandbox, and reports the result.

    python3 -I pytest_inside.py DIRECTORY_OF_TESTS REPORT TEST_FILE...

The reward is 1 if every collected test passed; skipped tests and tests that did not run have not
passed. The tests are passed as absolute paths, so that pytest looks for settings and conftest files
there and not in its working directory, which belongs to the agent.
"""

import json
import os
import sys

# No cache, which would be written next to the tests. `main` also disables third-party plugins.
OPTIONS = ("-p", "no:cacheprovider", "-q", "-ra", "--color=no")

NOT_HERE = 69
PASSED, FAILED = 0, 1


class Outcomes:
    """A plugin that counts results. broken: number of files that could not be collected."""

    def __init__(self):
        self.collected = self.broken = 0
        self.passed, self.not_passed = set(), set()

    def pytest_collectreport(self, report):
        self.broken += report.failed

    def pytest_collection_finish(self, session):
        self.collected = len(session.items)

    def pytest_runtest_logreport(self, report):
        if report.passed and not hasattr(report, "wasxfail"):
            self.passed.add(report.nodeid)
        else:
            self.not_passed.add(report.nodeid)

    def all_passed(self):
        passed = len(self.passed - self.not_passed)
        return not self.broken and 0 < self.collected == passed


def main(tests, report, *names):
    """Returns the exit code: 0 if all passed, 1 if not; others mean that there is no verdict."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        import pytest
    except ImportError as error:
        print(f"pytest is not installed ({error}); type: apt-get install python3-pytest")
        return NOT_HERE
    outcomes = Outcomes()
    paths = [os.path.join(tests, name) for name in names]
    code = int(pytest.main([*OPTIONS, *paths], plugins=[outcomes]))
    if code not in (PASSED, FAILED) and not outcomes.broken:
        return code
    passed = code == PASSED and outcomes.all_passed()
    told = {"reward": float(passed), "collected": outcomes.collected, "broken": outcomes.broken}
    told["passed"] = len(outcomes.passed - outcomes.not_passed)
    with open(report, "w") as file:
        json.dump(told, file)
    return PASSED if passed else FAILED


if __name__ == "__main__":
    exit_code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit(), which would run exit handlers and wait for threads of the agent's code.
    os._exit(exit_code)
