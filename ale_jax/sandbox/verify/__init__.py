"""Verifiers: the judgement of what an agent left in its sandbox, by tests that run in there.

    verdict = verify(sandbox, Verifier({"test.sh": script}, ["bash", "/tests/test.sh"]))

What it rests on, in this order: every process of the agent's is dead; the directories of tests and
report are made anew, whatever the agent put there; only then the tests are copied in; the command
is a fresh process with an environment of its own, whose PATH leads to nothing that the agent could
write; all that it started is dead before its report is read. No verdict is an error, never a 0.

What this proves, and what it cannot: until the tests touch the agent's work, nothing of the agent's
runs, so what a test finds in files it really found. Once tests run that work (import a module,
start a program, open a repository with hooks), it has the rights of the tests, and within one
process their memory, too: it can read the tests, replace a function of pytest, write the report and
end the process. A report that must agree with the exit code stops what ends or skips tests by plain
means, not what is written against this very verifier. Where that matters, let a test start the work
as a process, and compare what it says with what that process never sees, as `envs/shell` does from
outside the sandbox.
"""
