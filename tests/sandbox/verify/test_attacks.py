"""What an agent prepares for its verifier neither earns a reward that was not earned, nor keeps one
that was from being found."""

import pytest

from ale_jax.sandbox.verify.verifier import Evidence, Verifier, VerifierFailed, verify
from tests.sandbox.conftest import processes
from tests.sandbox.verify.conftest import bash_verifier, reward

FORGED = (
    "mkdir -p {tests} {report}; echo 1 > {report}/reward.txt; "
    "echo 'echo 1 > $REPORT/reward.txt' > {tests}/test.sh"
)
# Directories that are parts of their own, and directories among the agent's files.
PLACES = [("/tests", "/logs/verifier"), ("/app/tests", "/app/logs/verifier")]

OBSTACLES = {
    "a link to its own": "rm -rf {0}; mkdir -p /app/mine; ln -s /app/mine {0}",
    "a link to a link": "rm -rf {0}; ln -s /app/loop {0}; ln -s {0} /app/loop",
    "a link to nowhere": "rm -rf {0}; ln -s /nowhere {0}",
    "a link to the system": "rm -rf {0}; ln -s /usr {0}",
    "links within": "mkdir -p {0}; ln -s /dev/zero {0}/reward.txt; ln -s /app {0}/test.sh",
    "a pipe": "rm -rf {0}; mkfifo {0}",
    "pipes within": "mkdir -p {0}; mkfifo {0}/test.sh {0}/reward.txt {0}/reward.json",
    "a file": "rm -rf {0}; echo 1 > {0}",
    "a socket": "rm -rf {0}; python3 -c \"import socket; socket.socket(1).bind('{0}')\"",
    "a directory that nobody may enter": "mkdir -p {0}; chmod 000 {0}",
    "a directory that nobody may change": "mkdir -p {0}/a; touch {0}/a/b; chmod -R a-w {0}",
    "a parent that nobody may change": "rm -rf {0}; chmod a-w $(dirname {0})",
    "a parent that nobody may enter": "rm -rf {0}; chmod 000 $(dirname {0})",
    "a parent that is a link": "rm -rf $(dirname {0}); ln -s /app/mine $(dirname {0})",
    "a directory where the tests go": "mkdir -p {0}/test.sh/x {0}/reward.txt/x {0}/scratch/x",
    "a deep tree": 'mkdir -p {0}; cd {0}; python3 -c "import os\n'
    "for i in range(600): os.mkdir('d'); os.chdir('d')\"",
    "many files": "mkdir -p {0}; cd {0}; touch {{1..3000}}",
    "a mount": "mkdir -p {0} /app/mine; mount --bind /app/mine {0}; mount -t tmpfs none {0};"
    " unshare --user --map-root-user --mount mount --bind /app/mine {0}",
}


@pytest.mark.heavy
@pytest.mark.each_runtime
@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
def test_obstacles_in_the_way_of_tests_and_report(box, runtime, obstacle):
    """Pairwise: every obstacle meets both places, both runtimes and both users."""
    places = PLACES[(runtime.name == "docker") ^ (box.spec.user == "root")]
    tests, report = places
    verifier = bash_verifier(tests=tests, report=report)
    prepare = [FORGED.format(tests=tests, report=report), *map(obstacle.format, places)]
    for earned, answer in ((0.0, "41"), (1.0, "42")):
        box.run(f"echo {answer} > /app/answer")
        for command in prepare:
            box.run(f"({command}) 2> /dev/null")
        box.run(f"echo {answer} > /app/answer")  # again, where it went with what is above
        assert reward(box, verifier) == earned


def test_a_report_that_was_there_before_does_not_count(box):
    box.run("mkdir -p /logs/verifier; cd /logs/verifier; echo 1 > reward.txt")
    box.run("echo '{\"reward\": 1}' > /logs/verifier/reward.json")
    with pytest.raises(VerifierFailed, match="no report"):
        reward(box, bash_verifier(b"true"))


BACKGROUND = {
    "rewrites the tests": "echo 'echo 1 > $REPORT/reward.txt' > /tests/test.sh",
    "writes the report": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "does the task at the last moment": "[ -e /tests/test.sh ] && echo 42 > /app/answer",
    "steals the tests": "cp /tests/test.sh /app/stolen",
}


@pytest.mark.each_runtime
@pytest.mark.parametrize("deed", BACKGROUND.values(), ids=BACKGROUND)
def test_processes_that_the_agent_left_running(box, deed):
    box.run(f"setsid nohup bash -c 'while :; do {deed}; done' > /dev/null 2>&1 & disown; sleep 0.1")
    slow = b"sleep 0.3\n" + bash_verifier().files["test.sh"]
    assert reward(box, bash_verifier(slow)) == 0.0
    assert box.run("ls /app/stolen").exit_code != 0
    assert "while" not in processes(box)


@pytest.mark.each_runtime
def test_a_fork_bomb_that_is_still_alive(box):
    box.run("echo 42 > /app/answer; bomb() { bomb | bomb & }; bomb; sleep 0.2", timeout=2)
    assert reward(box) == 1.0
    assert "bomb" not in processes(box)


@pytest.mark.each_runtime
def test_a_full_disk(box):
    fill = (
        "for d in /tests /logs/verifier /tmp /work /app; do head -c 20M /dev/zero > $d/fill; done"
    )
    box.run(f"echo 42 > /app/answer; {fill} 2> /dev/null")
    assert "100%\n100%" in box.run("df --output=pcent /tests /logs/verifier").output
    script = b"head -c 9999 /dev/zero > $(mktemp) || exit\n" + bash_verifier().files["test.sh"]
    assert reward(box, bash_verifier(script)) == 1.0


POISON = "echo 1 > /logs/verifier/reward.txt; echo poisoned; exit 0"
PLANTED = (
    "mkdir -p ~/bin; for f in {names}; do printf '#!/bin/sh\\n{poison}\\n' > $f; chmod +x $f; done"
)


@pytest.mark.parametrize("folder", ["/usr/local/bin", "~/bin", "/app"])
def test_programs_that_the_agent_put_where_others_look_for_them(box, folder):
    names = " ".join(f"{folder}/{name}" for name in ("bash", "sh", "cat", "python3", "env", "["))
    box.run(PLANTED.format(names=names, poison=POISON))
    box.run(f"PATH={folder}:$PATH; export PATH; hash -r")
    script = bash_verifier().files["test.sh"] + b"\npython3 -c 'print(6 * 7)'; env true\n"
    verdict = verify(box, bash_verifier(script, cwd="/app"))
    assert verdict.reward == 0.0
    assert verdict.output.stdout == "42\n"


STARTUP = {
    "variables": "export BASH_ENV=/app/e ENV=/app/e PYTHONPATH=/app PYTHONSTARTUP=/app/e EVIL=1"
    " LD_PRELOAD=/app/e LD_LIBRARY_PATH=/app GCONV_PATH=/app PYTHONHOME=/app",
    "functions": "cat() { echo 42; }; test() { :; }; export -f cat test; alias '['=true",
    "shell files": "for f in .bashrc .bash_profile .profile .bash_logout; do echo 'exit 0' > ~/$f;"
    " cp ~/$f /tmp; done",
}


@pytest.mark.parametrize("plant", STARTUP.values(), ids=STARTUP)
def test_what_the_agent_set_in_its_session(box, plant):
    box.run(f"echo '{POISON}' > /app/e; cd /app")
    box.run(plant)
    script = bash_verifier().files["test.sh"] + b"\nenv; python3 -c 'print(6 * 7)'\n"
    verdict = verify(box, bash_verifier(script))
    assert verdict.reward == 0.0
    assert verdict.output.stdout.endswith("\n42\n") and not verdict.output.stderr
    for word in ("poisoned", "EVIL", "/app", "BASH_ENV"):
        assert word not in verdict.output.stdout, word


def test_modules_that_the_agent_put_where_python_looks_for_them(box):
    forge = 'open("/logs/verifier/reward.txt", "w").write("1"); import os; os._exit(0)'
    version = "python$(python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])')"
    for folder in ("/app", f"~/.local/lib/{version}/site-packages", "/tmp", "/work"):
        names = "{sitecustomize,usercustomize,json,os,site}.py"
        box.run(f"mkdir -p {folder}; for f in {folder}/{names}; do echo '{forge}' > $f; done")
    script = b'import json; open("/logs/verifier/reward.txt", "w").write(json.dumps(0))'
    command = ["python3", "/tests/check.py"]
    verifier = Verifier({"check.py": script}, command, Evidence.REPORT, cwd="/app")
    assert reward(box, verifier) == 0.0


def test_a_daemon_out_of_the_agents_work_does_not_write_the_report_later(box):
    late = "sleep 0.5; while :; do echo 1 > /logs/verifier/reward.txt; done"
    box.run(f"echo 'setsid bash -c \"{late}\" > /dev/null 2>&1 &' > /app/solution.sh")
    script = b"bash /app/solution.sh; echo 0 > $REPORT/reward.txt"
    assert reward(box, bash_verifier(script)) == 0.0
    assert "sleep" not in processes(box)


DISTURBS = """
for d in /logs/verifier /tests; do echo 1 > $d/reward.txt; echo 'exit 0' > $d/test.sh; done
while :; do kill -9 $PPID; echo 1 > /logs/verifier/reward.txt; done 2> /dev/null &
: > /proc/$PPID/mem; cat /tests/test.sh; true
"""


@pytest.mark.each_runtime
def test_a_program_that_the_tests_start_as_another_user_can_change_nothing_of_theirs(box, runtime):
    if runtime.name != "docker" or box.spec.user != "root":
        pytest.skip("users are Docker's")
    box.replace_directory("/app", {"work.sh": DISTURBS.encode()})
    start = b"chmod 755 /app; setpriv --reuid=1000 --regid=1000 --clear-groups bash /app/work.sh\n"
    verdict = verify(box, bash_verifier(start + b"sleep 0.2; " + bash_verifier().files["test.sh"]))
    assert verdict.reward == 0.0
    assert "setpriv" not in verdict.output.stdout
