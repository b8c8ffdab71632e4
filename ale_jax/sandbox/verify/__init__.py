"""Verifiers: tests that run in an agent's sandbox and judge what the agent left there.

    verdict = verify(sandbox, Verifier({"test.sh": script}, ["bash", "/tests/test.sh"]))

Verification takes these steps, in this order. It kills all processes of the agent. It recreates the
directories of tests and report, whatever the agent put there, and only then copies the tests in. It
runs the command as a new process with its own environment, whose PATH has no directory that the
agent could write to. It kills everything that the command started before it reads the report. If
there is no verdict, that is an error, never a reward of 0.

This guarantees that no code of the agent runs until the tests execute it, so until then tests can
trust what they find in files. Once tests execute the agent's work (import a module, start a
program, open a repository with hooks), it has the rights of the tests, and in the same process also
access to their memory: it can read the tests, replace a function of pytest, write the report and
end the process. Requiring that the report agrees with the exit code stops work that ends or skips
tests by simple means, but not code that targets this verifier. Where that matters, let a test start
the work as a separate process, and compare its output with data that this process never sees, as
`envs/shell` does from outside the sandbox.
"""
