"""launch/kubernetes/pod.yaml, on CPUs as it stands, and on TPUs: it conforms to JobSet's schema,
and its parts and the program that it starts find each other.
"""

import functools
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from ale_jax import launch
from ale_jax.config.run import CheckpointConfig
from ale_jax.errors import EXIT_FAILED
from ale_jax.system.hosts.run import GRACE_MORE_S
from ale_jax.system.hosts.start import HostOptions

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "launch/kubernetes/pod.yaml"
SCHEMA = json.loads((Path(__file__).parent / "jobset_v1alpha2.json").read_text())


@functools.cache
def objects(accelerator):
    text = MANIFEST.read_text()
    if accelerator == "tpu":
        text = text.replace("# TPU ", "")  # what docs/pods.md does by sed
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.fixture(params=["cpu", "tpu"])
def jobset(request):
    return objects(request.param)["JobSet"]


def job_of(jobset):
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def pod_of(jobset):
    return job_of(jobset)["template"]["spec"]


def test_the_schema_accepts_it(jobset):
    jsonschema.validate(jobset, SCHEMA)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("maxRestarts", "maxRestart"),
        ("action: FailJobSet", "action: FailAll"),
        ("completions: &hosts 4", "completions: &hosts four"),
        ("terminationGracePeriodSeconds", "gracePeriodSeconds"),
        ("restartPolicy: Never", "restartPolicy: [Never]"),
        ("persistentVolumeClaim", "volumeClaim"),
    ],
)
def test_the_schema_refuses_what_is_not_a_jobset(old, new):
    broken = next(yaml.safe_load_all(MANIFEST.read_text().replace(old, new, 1)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_the_processes_find_each_other(jobset):
    job = job_of(jobset)
    command = pod_of(jobset)["containers"][0]["command"]
    values = dict(word[2:].split("=") for word in command if word.startswith("--"))
    assert values["process"] == "$(JOB_COMPLETION_INDEX)" and job["completionMode"] == "Indexed"
    assert int(values["processes"]) == job["completions"] == job["parallelism"] > 1
    # As JobSet names the first pod: JOBSET-REPLICATEDJOB-0-0, in the service JOBSET.
    name = jobset["metadata"]["name"]
    first = f"{name}-{jobset['spec']['replicatedJobs'][0]['name']}-0-0.{name}"
    assert values["coordinator"].rpartition(":")[0] == first
    HostOptions(values["coordinator"], int(values["processes"]), 0)


def test_only_what_the_plan_refuses_is_not_started_again(jobset):
    job, policy = job_of(jobset), jobset["spec"]["failurePolicy"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [EXIT_FAILED]
    (plan,) = pod_of(jobset)["initContainers"]
    assert rule["onExitCodes"]["containerName"] == plan["name"]
    (refused,) = policy["rules"]
    assert refused["action"] == "FailJobSet"
    assert refused["onJobFailureReasons"] == ["PodFailurePolicy"]
    # Any other failed pod fails the job at once, for which the JobSet makes a new one.
    assert job["backoffLimit"] == 0 and pod_of(jobset)["restartPolicy"] == "Never"
    assert policy["restartStrategy"] == "Recreate" and policy["maxRestarts"] > 0


def test_the_plan_is_of_the_line_that_trains_and_refuses_a_mistake(jobset, capsys):
    (plan,), (train,) = pod_of(jobset)["initContainers"], pod_of(jobset)["containers"]
    assert plan["args"] == train["args"] and plan["image"] == train["image"]
    assert plan["command"][:3] == train["command"][:3] == ["python", "-m", "ale_jax.launch"]
    line = plan["command"][2:] + plan["args"]
    assert launch.main(line) == 0
    assert launch.main([*line, "--config.rl.alhpa=1.0"]) == EXIT_FAILED
    assert "did you mean" in capsys.readouterr().err


def test_there_is_time_to_save(jobset):
    grace = CheckpointConfig().grace_seconds + GRACE_MORE_S
    assert pod_of(jobset)["terminationGracePeriodSeconds"] > grace


def test_the_folder_of_the_run_is_on_the_volume_that_all_pods_share(jobset):
    pod = pod_of(jobset)
    (train,) = pod["containers"]
    (workdir,) = [word for word in train["args"] if word.startswith("--workdir=")]
    mounts = {mount["name"]: mount["mountPath"] for mount in train["volumeMounts"]}
    assert workdir.startswith(f"--workdir={mounts['runs']}/")
    claims = {volume["name"]: volume.get("persistentVolumeClaim") for volume in pod["volumes"]}
    claim = yaml.safe_load((MANIFEST.parent / "runs.yaml").read_text())
    assert claims["runs"] == {"claimName": claim["metadata"]["name"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_no_pod_has_more_than_it_needs(jobset):
    pod = pod_of(jobset)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all("hostPath" not in volume for volume in pod["volumes"])
    for container in pod["initContainers"] + pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_only_the_pods_of_the_jobset_reach_each_other():
    policy, jobset = (objects("cpu")[kind] for kind in ("NetworkPolicy", "JobSet"))
    labels = {"jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"]}
    assert policy["spec"]["podSelector"] == {"matchLabels": labels}
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]


def test_a_slice_has_as_many_chips_as_its_topology_says():
    jobset = objects("tpu")["JobSet"]
    pod, job = pod_of(jobset), job_of(jobset)
    columns, rows = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = pod["containers"][0]["resources"]["limits"]["google.com/tpu"]
    assert chips * job["completions"] == int(columns) * int(rows)
    # Two slices of one topology must not share a job.
    assert "alpha.jobset.sigs.k8s.io/exclusive-topology" in jobset["metadata"]["annotations"]
    assert "TPU" not in json.dumps(objects("cpu")["JobSet"])
