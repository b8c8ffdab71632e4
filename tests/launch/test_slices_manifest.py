"""launch/kubernetes/slices.yaml: it conforms to KubeRay's schema, as does cluster.yaml, and its
parts agree with each other and with what trains on them."""

import functools
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray_slices import hosts_of_slice

from ale_jax.config.run import CheckpointConfig
from ale_jax.system.hosts.run import GRACE_MORE_S

pytestmark = pytest.mark.heavy

FOLDER = Path(__file__).parents[2] / "launch/kubernetes"
MANIFEST = FOLDER / "slices.yaml"
SCHEMA = json.loads((Path(__file__).parent / "raycluster_v1.json").read_text())
ACCELERATORS = {"tpu-v6e-slice": "TPU-V6E"}  # as GKE names them, and Ray


@functools.cache
def objects(name="slices.yaml"):
    found = yaml.safe_load_all((FOLDER / name).read_text())
    return {each["kind"]: each for each in found}


def workers():
    (group,) = objects()["RayCluster"]["spec"]["workerGroupSpecs"]
    return group


def pods():
    groups = objects()["RayCluster"]["spec"]["headGroupSpec"], workers()
    return [group["template"]["spec"] for group in groups]


@pytest.mark.parametrize("name", ["slices.yaml", "cluster.yaml"])
def test_the_schema_accepts_it(name):
    jsonschema.validate(objects(name)["RayCluster"], SCHEMA)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("numOfHosts", "numberOfHosts"),
        ("numOfHosts: 4", "numOfHosts: four"),
        ("headGroupSpec", "head"),
        ("mode: token", "mode: password"),
        ('num-cpus: "0"', "num-cpus: 0"),
        ("groupName", "group"),
        ("nodeSelector", "nodeSelectors"),
        ("persistentVolumeClaim", "volumeClaim"),
    ],
)
def test_the_schema_refuses_what_is_not_a_ray_cluster(old, new):
    broken = next(yaml.safe_load_all(MANIFEST.read_text().replace(old, new, 1)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_a_slice_has_as_many_hosts_and_chips_as_its_topology_says():
    head, worker = pods()
    selector = worker["nodeSelector"]
    topology = selector["cloud.google.com/gke-tpu-topology"]
    accelerator = ACCELERATORS[selector["cloud.google.com/gke-tpu-accelerator"]]
    hosts = workers()["numOfHosts"]
    assert hosts == hosts_of_slice(topology, accelerator)
    resources = worker["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    columns, rows = topology.split("x")
    assert hosts * resources["limits"]["google.com/tpu"] == int(columns) * int(rows)
    assert workers()["minReplicas"] == workers()["replicas"] == workers()["maxReplicas"]
    assert "google.com/tpu" not in json.dumps(head)
    start = objects()["RayCluster"]["spec"]["headGroupSpec"]["rayStartParams"]
    assert start["num-cpus"] == "0"


def test_there_is_time_to_save_before_ray_gives_a_host_up():
    _, worker = pods()
    variables = {each["name"]: each["value"] for each in worker["containers"][0]["env"]}
    drains_s = float(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    grace = CheckpointConfig().grace_seconds + GRACE_MORE_S
    assert worker["terminationGracePeriodSeconds"] > drains_s > grace


def test_the_folder_of_runs_is_on_the_volume_that_all_hosts_share():
    _, worker = pods()
    (volume,) = worker["volumes"]
    (mount,) = worker["containers"][0]["volumeMounts"]
    assert mount == {"name": volume["name"], "mountPath": "/runs"}
    claim = yaml.safe_load((FOLDER / "runs.yaml").read_text())
    assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}


def test_no_pod_has_more_than_it_needs():
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_only_the_pods_of_the_cluster_reach_each_other_and_calls_need_its_token():
    cluster, policy = objects()["RayCluster"], objects()["NetworkPolicy"]["spec"]
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    labels = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}
    assert policy["podSelector"] == labels and policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": labels}]}]
