"""Verifiers: tests that run in an agent's sandbox and judge what the agent left there.

    verdict = verify(sandbox, Verifier({"test.sh": script}, ["bash", "/tests/test.sh"]))
    judgement = judge(sandbox, verifier, restore)  # and whose fault a missing verdict is

Verification takes these steps, in this order. It kills all processes of the agent. It recreates the
directories of tests and report, whatever the agent put there, and only then copies the tests in. It
runs the command as a new process with its own environment, whose PATH has no directory that the
agent could write to. It kills everything that the command started before it reads the report.

No code of the agent runs until the tests execute it, so until then tests can trust what they find
in files. What they can trust afterwards depends on how they execute it:

- *Judged from outside*, as in `envs/shell`: the sandbox runs the agent's program, and the host
  compares its output. Nothing of the judgement is in the sandbox, so nothing of it can be forged.
- *Started as another user*: a sandbox of Docker with user root has other users, and tests can use
  them: `subprocess.run(argv, user="agent", group="agent", extra_groups=())`, or setpriv. Then the
  program can change neither the tests nor their report, nor disturb their processes.
- *Started as the tests' own user*: the program can kill the tests and change their files, and write
  a report that is a file. Under `pytest_verifier` it finds no report and can open no process above
  it: the verdict goes to stdout, of a parent process that is not dumpable. Tests should read what
  they compare with before they start it.
- *Imported*: the code shares the memory of the tests. Under `pytest_verifier` it cannot pass by
  ending the process, by writing a report, or by changing what the parent runs. But it can replace
  functions of pytest, return objects that equal everything, or take the random number of the counts
  from the tests' memory. No process can be protected from code that it runs, so where this matters,
  let the tests start the work instead.

A missing verdict (`VerifierFailed`) says nothing yet. `judge` runs the same verifier on the
untouched task. If that has a verdict, the agent's work is the cause, and it has failed. The limits
of this control: it comes after the first run, so trouble of the host that has ended by then is
charged to the agent; and it usually ends early, because untouched tasks fail at once, so a host
that is only slow passes it. Time limits should therefore be several times what a right solution
needs. If the sandbox itself is lost, there is no control, and nobody is charged.
"""
