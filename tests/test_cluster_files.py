"""The files that make clusters: Ray accepts them, and what they name is in this repository."""

import functools
import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts import scripts

from ale_jax.sandbox import bubblewrap_process
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.cli.parser import make_parser, spec_of
from ale_jax.sandbox.kubernetes import runtime
from ale_jax.sandbox.kubernetes.manifest import PACKED, TOOLS, image_of, refuse_unenforceable
from ale_jax.sandbox.runtime import RUNTIMES
from ale_jax.sandbox.service.access import ServiceSettings, read_tokens
from ale_jax.system.fleet import serve
from tests.launch.commands_on_path import CommandsOnPath
from tests.sandbox.conftest import SPEC
from tests.sandbox.kubernetes.api_server import VALIDATOR

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "launch"
CLUSTERS = ("gce.yaml", "ssh.yaml")
SHIPPED = [*LAUNCH.glob("*.*"), *LAUNCH.glob("kubernetes/*")]
OURS = re.compile(r"python -m (\S+)((?: --[a-z-]+=[\w./:]+)*)")
RAY = re.compile(
    r"""(?:\.venv/bin/|^ +)ray ([\w-]+)((?: (?:'[^'\n]*'|[^\s'"&>)]+))*)""", re.MULTILINE
)
MAKE = re.compile(r"(?:^\s+|&& |`|RUN )make ((?:[a-z-]+ ?)+)", re.MULTILINE)
PATH = re.compile(r"\b(?:launch|ale_jax|envs)/[\w./-]*\w")


def load(name: str) -> dict:
    return yaml.safe_load((LAUNCH / name).read_text())


@functools.cache
def objects() -> dict[tuple[str, str], dict]:
    """Those of the manifest, by kind and name."""
    found = yaml.safe_load_all((LAUNCH / "kubernetes/cluster.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pods() -> dict[str, dict]:
    """Their specs, by the name of the container."""
    ray = objects()["RayCluster", "sandboxes"]["spec"]
    groups = [ray["headGroupSpec"], *ray["workerGroupSpecs"]]
    groups.append(objects()["Deployment", "sandbox-service"]["spec"])
    specs = [group["template"]["spec"] for group in groups]
    return {spec["containers"][0]["name"]: spec for spec in specs}


@pytest.mark.parametrize("name", CLUSTERS)
def test_rays_launcher_accepts_the_file(name):
    config = prepare_config(load(name))
    validate_config(config)
    assert config["head_setup_commands"][0] == "cd ~/ale-jax && make install-cluster"
    workers = [t for t in config["available_node_types"].values() if t["min_workers"]]
    assert [worker["min_workers"] for worker in workers] == [config["max_workers"]] == [2]
    with pytest.raises(ValidationError, match="rsync_excluded"):
        validate_config(prepare_config(load(name) | {"rsync_excluded": []}))


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_head_holds_no_sandboxes_and_no_call_goes_without_a_token(name):
    config = load(name)
    head, worker = (config[f"{each}_start_ray_commands"][-1] for each in ("head", "worker"))
    assert "--num-cpus=0" in head and "--num-cpus" not in worker
    assert all("RAY_AUTH_MODE=token" in command for command in (head, worker))
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


def test_no_machine_of_compute_engine_has_a_public_address():
    config = load("gce.yaml")
    assert config["provider"]["use_internal_ips"] is True
    for machine in config["available_node_types"].values():
        (interface,) = machine["node_config"]["networkInterfaces"]
        assert "accessConfigs" not in interface
        assert config["provider"]["region"] in interface["subnetwork"]


def commands() -> str:
    """All that the files say, with folded lines joined as a shell would see them."""
    return "\n".join(re.sub(r"\\?\n\s+(?=--|&&|\")", " ", path.read_text()) for path in SHIPPED)


def test_modules_and_options_that_are_named_exist():
    named = OURS.findall(commands())
    assert {module for module, _ in named} == {"ale_jax.system.fleet.serve", "ale_jax.launch"}
    for module, options in named:
        assert importlib.util.find_spec(module)
        if module == "ale_jax.system.fleet.serve":
            serve.make_parser().parse_args(shlex.split(options))


def test_targets_and_paths_that_are_named_exist():
    targets = {each for line in MAKE.findall(commands()) for each in line.split()}
    assert targets >= {"install-cluster", "runtimes"}
    makefile = (ROOT / "Makefile").read_text()
    assert not [each for each in targets if not re.search(rf"^{each}:", makefile, re.MULTILINE)]
    paths = set(PATH.findall(commands()))
    assert len(paths) > 5
    assert not [each for each in paths if not (ROOT / each).exists()]


def test_what_is_said_to_ray_is_what_ray_understands():
    said = RAY.findall(commands())
    assert {name for name, _ in said} == {"up", "down", "exec", "start", "stop", "get-auth-token"}
    for name, options in said:
        scripts.cli.commands[name].make_context(name, shlex.split(options))


def test_no_pod_has_more_than_it_needs():
    assert pods().keys() == {"ray-head", "ray-worker", "service"}
    for name, pod in pods().items():
        (container,) = pod["containers"]
        own, whole = container["securityContext"], pod["securityContext"]
        assert pod["automountServiceAccountToken"] is False
        assert own["allowPrivilegeEscalation"] is False and whole["runAsNonRoot"] is True
        assert own["capabilities"] == {"drop": ["ALL"]} and "privileged" not in own
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all("hostPath" not in volume for volume in pod.get("volumes", ()))
        if name != "ray-worker":
            assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
            assert own.keys() == {"allowPrivilegeEscalation", "capabilities"}


def test_the_parts_of_the_manifest_find_each_other():
    service, deployment = (objects()[k, "sandbox-service"] for k in ("Service", "Deployment"))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == service["spec"]["ports"][0]["port"] == ServiceSettings().port
    policy = objects()["NetworkPolicy", "sandbox-service"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"][-1]["ports"] == [{"port": port["name"]}]
    cluster = objects()["RayCluster", "sandboxes"]["metadata"]["name"]
    assert f"--address={cluster}-head-svc:6379" in container["args"][0]
    closed = objects()["NetworkPolicy", "sandboxes"]["spec"]["podSelector"]["matchLabels"]
    assert closed == {"ray.io/cluster": cluster}
    secrets = {e["valueFrom"]["secretKeyRef"]["name"] for e in container["env"] if "valueFrom" in e}
    assert secrets == {cluster, "sandbox-tokens"}  # the operator makes the one, README.md the other
    assert "secret generic sandbox-tokens --from-file=tokens=" in commands()


@pytest.mark.heavy
def test_the_token_of_the_service_is_in_no_list_of_processes(tmp_path):
    kubectl = CommandsOnPath(tmp_path / "bin")
    kubectl.add("kubectl", '(here / "tokens").write_text(pathlib.Path("/dev/stdin").read_text())')
    (line,) = re.findall(r"^ {4}(.*create secret generic.*)$", commands(), re.MULTILINE)
    subprocess.run(["bash", "-c", line], env=kubectl.environment, check=True)
    (called,) = kubectl.calls()
    assert called[-1] == "--from-file=tokens=/dev/stdin"
    tokens = (kubectl.folder / "tokens").read_text()
    assert read_tokens(None, {"ALE_SANDBOX_TOKENS": tokens}) and tokens.startswith("me ")


@functools.cache
def pods_of_their_own() -> dict[tuple[str, str], dict]:
    found = yaml.safe_load_all((LAUNCH / "kubernetes/pods.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_the_policy_for_pods_is_the_one_that_the_runtime_asks_for():
    policy = pods_of_their_own()["NetworkPolicy", runtime.POLICY]
    runtime._require_isolation(policy)
    with pytest.raises(SandboxStartError, match="must forbid all traffic"):
        runtime._require_isolation({"spec": policy["spec"] | {"egress": [{}]}})


def test_the_service_may_do_what_it_does_to_pods_and_no_more():
    rules = pods_of_their_own()["Role", "sandbox-service"]["rules"]
    granted = {resource: {*rule["verbs"]} for rule in rules for resource in rule["resources"]}
    assert granted == {
        "pods": {"create", "get", "list", "delete"},
        "pods/log": {"get"},
        "pods/attach": {"create", "get"},
        "networkpolicies": {"get"},
    }
    pod = pods_of_their_own()["Deployment", "sandbox-service"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (binding,) = pods_of_their_own()["RoleBinding", "sandbox-service"]["subjects"]
    assert binding["name"] == pod["serviceAccountName"]


def test_the_line_of_the_service_of_pods_is_understood():
    pod = pods_of_their_own()["Deployment", "sandbox-service"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = [word.replace("IMAGE", "registry/image:1") for word in container["args"]]
    arguments = make_parser().parse_args(words)
    VALIDATOR.validate(pod)
    refuse_unenforceable(spec := spec_of(arguments))
    assert arguments.runtime in RUNTIMES and image_of(spec) == "registry/image:1"
    assert TOOLS in {each["name"] for each in container["env"]}
    dockerfile = (LAUNCH / "kubernetes/Dockerfile").read_text()
    assert f"tar -x -C {PACKED}\n" in dockerfile


# As Docker has it, which is all that differs.
GRANTS = {
    "procMount": ("Unmasked", "systempaths=unconfined"),
    "seccompProfile": ({"type": "Unconfined"}, "seccomp=unconfined"),
}


def run_as_the_worker(grants: list[str]) -> subprocess.CompletedProcess:
    """bubblewrap, as the runtime calls it, in a container that has what a worker's pod has."""
    user = "1000:1000"
    line = ["docker", "run", "--rm", "--network=none", f"--user={user}", "--cap-drop=ALL"]
    for each in ("no-new-privileges", *grants):
        line.append(f"--security-opt={each}")
    inside = [*bubblewrap_process.line_in_memory(SPEC, [], None, {}), "echo", "works"]
    line += ["--volume=/usr:/usr:ro", "ale-shell", *inside]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def grants() -> list[str]:
    needed = "docker and ale-shell; type: make runtimes"
    answer = subprocess.run(["docker", "image", "inspect", "ale-shell"], capture_output=True)
    if answer.returncode:
        pytest.skip(f"needs {needed}")
    own = pods()["ray-worker"]["containers"][0]["securityContext"]
    assert all(own[field] == value for field, (value, _) in GRANTS.items())
    return [option for _, option in GRANTS.values()]


@pytest.mark.heavy
def test_bubblewrap_works_with_what_a_worker_is_granted(grants):
    answer = run_as_the_worker(grants)
    assert (answer.stdout, answer.returncode) == ("works\n", 0), answer.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("left_out", range(len(GRANTS)), ids=list(GRANTS))
def test_and_with_no_less(grants, left_out):
    answer = run_as_the_worker([*grants[:left_out], *grants[left_out + 1 :]])
    assert answer.stdout == "" and answer.stderr.startswith(("unshare: ", "mount: ", "bwrap: "))
