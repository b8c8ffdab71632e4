"""Task folders of schema 1.4 and before, which between them use every field of it."""

from pathlib import Path

TOML = 'schema_version = "1.4"\n'
TEST = """\
#!/bin/bash
[ "$(cat answer 2> /dev/null)" = "${WANTED:-42}" ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
PLAIN = {
    "task.toml": TOML,
    "instruction.md": "Write 42 into the file answer.\n",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "solution/solve.sh": "#!/bin/bash\necho 42 > answer\n",
    "tests/test.sh": TEST,
}
BY_NAME = """\
#!/bin/bash
[ -s answer ] && right=1.0 || right=0
echo "{\\"correct\\": $right, \\"short\\": $right%s}" > /logs/verifier/reward.json
"""
STEPS = """\
[environment]
workdir = "/app"
[verifier.env]
WANTED = "1"
[[steps]]
name = "one"
min_reward = 1
[steps.agent]
timeout_sec = 50
[steps.verifier]
timeout_sec = 20
[[steps]]
name = "two"
artifacts = ["/app/answer"]
[steps.min_reward]
reward = 0.5
[steps.verifier.env]
WANTED = "2"
[steps.healthcheck]
command = "test -e /app/set-up"
interval_sec = 0
timeout_sec = 5
retries = 1
"""
OF_STEPS = {
    "instruction.md": None,
    "solution/solve.sh": None,
    "tests/test.sh": f"{TEST}source /tests/more.sh\n",
    "tests/more.sh": "[ $reward = 1 ] || echo 0 > /logs/verifier/reward.txt\n",
    "steps/one/instruction.md": "Write 1.",
    "steps/one/solution/solve.sh": "#!/bin/bash\necho 1 > answer\n",
    "steps/two/instruction.md": "Write what number.txt holds.",
    "steps/two/solution/solve.sh": "#!/bin/bash\ncp number.txt answer\n",
    "steps/two/workdir/number.txt": "2\n",
    "steps/two/workdir/setup.sh": 'set -e\ngrep 1 answer\ntouch set-up; rm "$0"\n',
}
APART = """\
artifacts = ["answer", {source = "/app/out", destination = "kept", exclude = ["*.log"]}]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "date > /logs/artifacts/collected"
service = "main"
timeout_sec = 9
user = "root"
"""
SEES_ARTIFACTS_ALONE = """\
#!/bin/bash
[ -x out/yes ] && [ -e answer ] && [ ! -e out/no.log ] && [ ! -e secret ] && reward=1 || reward=0
[ -s /logs/artifacts/collected ] && [ -e given ] || reward=0
echo $reward > /logs/verifier/reward.txt
"""
LEAVES_ARTIFACTS = """\
#!/bin/bash
mkdir out; touch answer secret out/no.log out/yes; chmod +x out/yes
"""
GIVES = {
    "environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY given .\n",
    "environment/given": "1",
}
STEPS_APART = """\
multi_step_reward_strategy = "final"
artifacts = ["/app/answer"]
[verifier]
environment_mode = "separate"
env = {WANTED = "1"}
[[steps]]
name = "one"
min_reward = {reward = 1.0}
[[steps]]
name = "two"
[steps.verifier]
environment_mode = "shared"
env = {WANTED = "2"}
"""
MACHINE = """\
[environment]
build_timeout_sec = 60
os = "Linux"
cpus = 1
memory_mb = 512
storage_mb = 32
gpus = 0
mcp_servers = []
env = {GREETING = "hello", FROM_HOME = "${HOME:-none}"}
network_mode = "no-network"
[agent]
timeout_sec = 30.5
user = "root"
network_mode = "no-network"
[verifier]
timeout_sec = 25
user = 0
env = {WANTED = "${WANTED_NUMBER:-hello none}"}
network_mode = "no-network"
[solution]
env = {TARGET = "my answer"}
"""
HEALTHY = """\
[environment.healthcheck]
command = "echo >> /app/tries; [ $(wc -l < /app/tries) -ge 3 ]"
interval_sec = 0.01
timeout_sec = 5
start_period_sec = 0
start_interval_sec = 0.01
retries = 5
"""
HOSTS = """\
[environment]
network_mode = "no-network"
[agent]
network_mode = "allowlist"
allowed_hosts = ["PyPI.org.", "*.example.org"]
[verifier]
network_mode = "allowlist"
allowed_hosts = ["8.8.4.4"]
"""
OLD = """\
version = "1.0"
source = "somewhere"
[task]
name = "org/old"
[metadata]
author_name = "unknown"
difficulty = "easy"
tags = ["python"]
[environment]
memory = "1G"
storage = "32M"
allow_internet = false
"""

# Name: what differs from PLAIN. The solution of each earns 1, or as much as PAYS says.
PLAYED = {
    "plain": {},
    "old": {"task.toml": OLD},
    "machine": {
        "task.toml": TOML + MACHINE,
        "solution/solve.sh": '#!/bin/bash\n[ "$TARGET" = "my answer" ] && '
        'echo "$GREETING $FROM_HOME" > answer\n',
    },
    "names": {"tests/test.sh": BY_NAME % ""},
    "reward and names": {"tests/test.sh": BY_NAME % ', \\"reward\\": $right'},
    "copies": {
        "environment/Dockerfile": "FROM x AS y\nENV A=1 B='2 3'\nENV C 4\nLABEL a=b\nUSER root\n"
        'WORKDIR /srv/work\nCOPY tree /srv/work/tree\nCOPY run.sh a.txt ./\nCMD ["true"]\n',
        "environment/tree/deep/b.txt": "b",
        "environment/run.sh": '#!/bin/bash\necho "$A$B$C$(cat a.txt tree/deep/b.txt)"\n',
        "environment/a.txt": "a",
        "solution/solve.sh": "#!/bin/bash\n./run.sh > answer\n",
        "tests/test.sh": TEST.replace("42", "12 34ab"),
    },
    "health": {"task.toml": TOML + HEALTHY},
    "canary": {"instruction.md": "<!-- canary 1 -->\n# canary 2\n\nWrite 42.\n"},
    "solution of files": {
        "solution/solve.sh": '#!/bin/bash\n"$(dirname "$0")"/data/make.sh > answer\n',
        "solution/data/make.sh": "#!/bin/sh\nprintf 42\n",
    },
    "tests of programs": {
        "tests/test.sh": "#!/bin/bash\n/tests/bin/judge.sh > /logs/verifier/reward.txt\n",
        "tests/bin/judge.sh": "#!/bin/bash\n[ -e answer ] && grep -c 42 answer || echo 0\n",
    },
    "python in test.sh": {
        "tests/test.sh": "#!/usr/bin/env python3\nimport os\n"
        "open('/logs/verifier/reward.txt', 'w').write(str(float(os.path.exists('answer'))))\n"
    },
    "steps": {"task.toml": f"{TOML}{STEPS}", **OF_STEPS},
    "last step": {
        "task.toml": f'{TOML}multi_step_reward_strategy = "final"\n{STEPS}',
        **OF_STEPS,
    },
    "steps judged apart": {"task.toml": TOML + STEPS_APART, **OF_STEPS},
    "apart": {
        "task.toml": TOML + APART,
        **GIVES,
        "solution/solve.sh": LEAVES_ARTIFACTS,
        "tests/test.sh": SEES_ARTIFACTS_ALONE,
    },
    "apart with a Dockerfile": {
        "task.toml": TOML + APART,
        "environment/given": None,
        "tests/Dockerfile": "FROM x\nWORKDIR /app\nENV MINE=1\nCOPY . /tests/\nCOPY given ./\n",
        "tests/given": "1",
        "solution/solve.sh": LEAVES_ARTIFACTS,
        "tests/test.sh": f"{SEES_ARTIFACTS_ALONE}[ $MINE ] || echo 0 > /logs/verifier/reward.txt\n",
    },
    "apart with an environment": {
        "task.toml": f"{TOML}[verifier.environment]\nworkdir = '/logs/artifacts'\n"
        "env = {WANTED = '7'}\nnetwork_mode = 'no-network'\n",
        "solution/solve.sh": "#!/bin/bash\necho 7 > /logs/artifacts/answer\n",
    },
    "an image": {
        "task.toml": f"{TOML}[environment]\ndocker_image = 'ale-shell'\nworkdir = '/app'\n",
        "environment/Dockerfile": None,
        "environment/loose.txt": "42\n",
        "solution/solve.sh": "#!/bin/bash\ncp loose.txt answer\n",
    },
    "the user agent": {
        "task.toml": f"{TOML}[agent]\nuser = 'agent'\n[verifier]\nuser = 'agent'\n",
        "solution/solve.sh": "#!/bin/bash\n[ $(id -u) != 0 ] && echo 42 > answer\n",
    },
    "public": {"task.toml": f"{TOML}[environment]\nnetwork_mode = 'public'\n"},
    "hosts": {"task.toml": TOML + HOSTS},
}
PAYS = {"names": {"correct": 1.0, "short": 1.0}}


def write(folder: Path, changes: dict[str, str | None]) -> Path:
    """A task folder: PLAIN with changes. None leaves a file out, and -> makes a link."""
    for name, text in (PLAIN | changes).items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("->"):
                (folder / name).symlink_to(text.removeprefix("->"))
                continue
            (folder / name).write_text(text)
            (folder / name).chmod(0o755 if name.endswith(".sh") else 0o644)
    return folder
