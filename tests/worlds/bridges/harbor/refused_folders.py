"""Task folders that are refused, with what the refusal says: fields that cannot be played here, and
files that are wrong."""


def toml(text: str) -> dict[str, str]:
    return {"task.toml": f'schema_version = "1.4"\n{text}\n'}


def environment(text: str) -> dict[str, str]:
    return toml(f"[environment]\n{text}")


def verifier(text: str) -> dict[str, str]:
    return toml(f"[verifier]\n{text}")


def step(text: str) -> dict[str, str | None]:
    files = {"steps/one/instruction.md": "x", "steps/one/tests/test.sh": "true"}
    return toml(f'[[steps]]\nname = "one"\n{text}') | files


def dockerfile(line: str) -> dict[str, str]:
    return {"environment/Dockerfile": f"FROM x\nWORKDIR /app\n{line}\n"}


SERVER = "[[environment.mcp_servers]]\nname = 'x'\ntransport = 'stdio'\ncommand = 'x'\n"
OWN = "makes an image of its own: build it, and name it in environment.docker_image"

# What harbor plays, in one of its many environments.
NOT_HERE = {
    "gpus": (environment("gpus = 1"), r"task.toml: environment.gpus 1 asks for GPUs"),
    "gpu types": (environment("gpu_types = ['H100']"), r"environment.gpu_types \['H100'\] asks"),
    "tpu": (
        environment("tpu = {type = 'v6e', topology = '2x4'}"),
        r"environment.tpu \{'topology': '2x4', 'type': 'v6e'\} asks for a TPU",
    ),
    "servers of tools": (
        toml(f"{SERVER}args = ['x']\n"),
        r"environment.mcp_servers .* asks for servers of tools",
    ),
    "servers of tools at an address": (
        toml(SERVER.replace("stdio", "sse") + "url = 'http://localhost'\nheaders = {A = 'b'}\n"),
        r"environment.mcp_servers .* asks for servers of tools",
    ),
    "skills": (environment("skills_dir = '/skills'"), r"environment.skills_dir '/skills' asks"),
    "windows": (
        environment("os = 'windows'") | {"tests/test.bat": "x"},
        r"environment.os 'windows' cannot be played",
    ),
    "several containers": (
        {"environment/docker-compose.yaml": "services: {}"},
        "environment/docker-compose.yaml makes more than one container",
    ),
    "a user of its own": (
        toml("[agent]\nuser = 'bob'"),
        r"agent.user 'bob' must be one of agent, root",
    ),
    "a user by number": (toml("[agent]\nuser = 1000"), r"agent.user 1000 is unknown"),
    "another user to judge": (verifier("user = 'agent'"), r"verifier.user 'agent' differs from"),
    "another user to collect": (
        verifier("[[verifier.collect]]\ncommand = 'x'\nuser = 'agent'"),
        r"verifier.collect.user 'agent' differs from",
    ),
    "another service to collect in": (
        verifier("[[verifier.collect]]\ncommand = 'x'\nservice = 'db'"),
        r"verifier.collect\[0\].service 'db' is not the one container",
    ),
    "an artifact of another service": (
        toml("artifacts = [{source = '/x', service = 'db'}]"),
        r"artifacts\[0\].service 'db' is not the one container",
    ),
    "a range of addresses": (
        environment("network_mode = 'allowlist'\nallowed_hosts = ['192.0.2.0/24']"),
        r"environment.allowed_hosts \['192.0.2.0/24'\] has a range of addresses",
    ),
    "more memory to judge in": (
        verifier("environment = {memory_mb = 4096}"),
        r"verifier.environment.memory_mb 4096 differs from",
    ),
    "a check of the verifier's health": (
        verifier("environment = {healthcheck = {command = 'x'}}"),
        r"verifier.environment.healthcheck \{'command': 'x'\} has nothing to wait for",
    ),
    "an image of its own": (
        dockerfile("RUN apt-get update && \\\n  apt-get install gcc"),
        f"environment/Dockerfile: 'RUN apt-get update && apt-get install gcc' {OWN}",
    ),
    "files of another image": (dockerfile("COPY --from=y /a /b"), f"'COPY --from=y /a /b' {OWN}"),
    "patterns of files": (dockerfile("COPY *.txt ./"), rf"'COPY \*.txt ./' {OWN}"),
    "two images": (dockerfile("FROM y"), f"'FROM y' {OWN}"),
    "variables of an image": (dockerfile("ENV A=$HOME"), f"'ENV A=.HOME' {OWN}"),
    "no working directory": (
        {"environment/Dockerfile": "FROM x\n"},
        r"task.toml: environment.workdir '' is not named, and by no Dockerfile: name a directory",
    ),
    "a directory relative to nothing": (
        environment("workdir = 'app'"),
        r"environment.workdir 'app' must be an absolute path",
    ),
    "perhaps the internet": (
        environment("allow_internet = 'yes'"),
        r"environment.allow_internet 'yes' must be true or false",
    ),
    "several containers to judge in": (
        verifier("environment_mode = 'separate'") | {"tests/docker-compose.yaml": "services: {}"},
        r"tests/docker-compose.yaml makes more than one container",
    ),
    "a directory of the system": (
        environment("workdir = '/usr/src/app'"),
        r"task one: cannot verify a sandbox in which the agent may write to '/usr/src/app'",
    ),
    "a file at the root": (
        toml("artifacts = ['/result.txt']\nverifier = {environment_mode = 'separate'}"),
        r"task one: sandbox writable '/' must be an absolute path below /",
    ),
    "an image of its own to judge in": (
        verifier("environment_mode = 'separate'") | {"tests/Dockerfile": "FROM x\nRUN make"},
        f"tests/Dockerfile: 'RUN make' {OWN}",
    ),
    "files that are left out": ({"tests/.harborignore": "x"}, r"tests/.harborignore: what it"),
    "what was said before": ({"trajectory.json": "{}"}, r"trajectory.json begins with what no"),
    "an unknown field": (
        environment("memry_mb = 512"),
        r"environment.memry_mb is an unknown field; did you mean 'memory_mb'\?",
    ),
    "a newer schema": ({"task.toml": "schema_version = '1.5'"}, r"schema_version '1.5' must be"),
    "a time as text": (verifier("timeout_sec = '9'"), r"verifier.timeout_sec '9' must be a number"),
    "no time at all": (verifier("timeout_sec = 0"), r"verifier.timeout_sec 0 must be a number of"),
    "secrets of this machine": (
        environment("env = {KEY = '${HARBOR_KEY}'}"),
        r"environment.env.KEY '\$\{HARBOR_KEY\}' reads a variable of this machine",
    ),
    "an artifact in no place": (toml("artifacts = [{source = ''}]"), r"artifacts\[0\].source ''"),
    "no Dockerfile": (
        {"environment/Dockerfile": None, "environment/x": ""},
        "environment has neither docker_image nor environment/Dockerfile",
    ),
    "a solution of another name": (
        {"solution/solve.sh": None, "solution/main.sh": "x"},
        r"solution/solve.sh is missing",
    ),
    "an image that is no name": (
        environment("docker_image = 'UPPER case'"),
        r"environment.docker_image 'UPPER case' is not a valid image name",
    ),
    "a link to a folder": (
        {"environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY up/instruction.md .\n"}
        | {"environment/up": "->.."},
        r"environment/Dockerfile: 'COPY up/instruction.md .' environment/up is a link",
    ),
    "a link inside": ({"tests/link": "->test.sh"}, r"tests/link is not a regular file"),
}
# What harbor refuses as well.
WRONG = {
    "no toml": ({"task.toml": "a = ["}, r"task.toml: is no TOML"),
    "no instruction": ({"instruction.md": None}, r"one: instruction.md is missing"),
    "no tests": ({"tests/test.sh": None}, r"one: tests/test.sh is missing"),
    "no such mode": (verifier("environment_mode = 'x'"), r"verifier.environment_mode 'x' must be"),
    "modes that contradict": (
        verifier("environment_mode = 'shared'\nenvironment = {}"),
        r"verifier.environment_mode 'shared' contradicts verifier.environment",
    ),
    "hosts without a list": (
        environment("network_mode = 'public'\nallowed_hosts = ['x.org']"),
        r"environment.allowed_hosts \['x.org'\] needs network_mode 'allowlist'",
    ),
    "a host that is none": (
        environment("network_mode = 'allowlist'\nallowed_hosts = ['http://localhost/y']"),
        r"environment.allowed_hosts \['http://localhost/y'\] has a range|allowed_hosts",
    ),
    "hosts that are no list": (
        environment("network_mode = 'allowlist'\nallowed_hosts = 'x.org'"),
        r"environment.allowed_hosts 'x.org' must be a list of texts",
    ),
    "no such network": (environment("network_mode = 'some'"), r"network_mode 'some' must be one"),
    "sizes that contradict": (
        environment("memory = '1G'\nmemory_mb = 512"),
        r"environment.memory '1G' contradicts memory_mb 512",
    ),
    "no size": (environment("memory = 'much'"), r"environment.memory 'much' must be a size"),
    "half a megabyte": (environment("memory_mb = 0.5"), r"memory_mb 0.5 must be a whole number"),
    "cpus without end": (environment("cpus = inf"), r"environment.cpus inf must be"),
    "variables that are numbers": (environment("env = {A = 1}"), r"environment.env.A 1 must be"),
    "variables that are none": (environment("env = 'A=1'"), r"environment.env 'A=1' must be a t"),
    "a table that is none": ({"task.toml": "environment = 1"}, r"environment 1 must be a table"),
    "a list that is none": (toml("steps = 1"), r"steps 1 must be a list"),
    "a step without a name": (toml("[[steps]]"), r"steps\[0\].name None must be the name"),
    "a step above": (toml("[[steps]]\nname = '..'"), r"steps\[0\].name '..' must be the name"),
    "a step twice": (
        step("[[steps]]\nname = 'ONE'"),
        r"steps \['one', 'ONE'\] names one twice",
    ),
    "a step without a folder": (
        toml("[[steps]]\nname = 'two'"),
        r"one: steps/two/instruction.md is missing",
    ),
    "a bound that is none": (step("min_reward = 'all'"), r"steps\[0\].min_reward 'all' must be"),
    "no such strategy": (toml("multi_step_reward_strategy = 'max'"), r"strategy 'max' must be"),
    "a check without a command": (
        environment("healthcheck = {retries = 1}"),
        r"environment.healthcheck.command None must be a command",
    ),
    "a hook without a command": (
        verifier("collect = [{timeout_sec = 1}]"),
        r"verifier.collect\[0\].command None must be a command",
    ),
    "an artifact above": (
        toml("artifacts = ['../x']"),
        r"artifacts\[0\].source '../x' must be a path, without '..'",
    ),
    "an artifact to above": (
        toml("artifacts = [{source = 'x', destination = '/y'}]"),
        r"artifacts\[0\].destination '/y' must be a relative path",
    ),
    "a name that is none": (toml("[task]\nname = 'x'"), r"task.name 'x' must be ORGANISATION/NAME"),
    "no author": (toml("[task]\nname = 'a/b'\nauthors = [1]"), r"task.authors \[1\] must be"),
    "no metadata": (toml("metadata = 1"), r"metadata 1 must be a table"),
    "a step behind a link": (
        toml("[[steps]]\nname = 'one'") | {"steps/one": "->.."},
        r"one: steps/one is a link, not a folder",
    ),
    "a link to outside": ({"tests/link": "->/etc/passwd"}, r"tests/link is not a regular file"),
}
