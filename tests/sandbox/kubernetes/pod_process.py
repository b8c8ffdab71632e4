"""What a node makes of a pod: its containers, one after the other, in gVisor (runsc), with the
image's files, the volumes and the rights that the manifest names.

A pod is one process of ours in its own mount namespace, so that nothing of it outlives it.
"""

import json
import os
import shutil

RUNSC = ("runsc", "--platform=ptrace", "-ignore-cgroups")
PROGRAMS = ("bin", "lib", "lib64", "sbin")


def why_not():
    """Why no pod can run here, or None."""
    if shutil.which("runsc") is None:
        return "runsc is not installed; type: apt-get install runsc"
    return None if os.getuid() == 0 else "needs root to mount"


def write_pod(manifest, folder, images, network):
    """Writes the pod's script and returns its path. images: their folders with files of their own,
    by name. network: what runsc is told."""
    spec = manifest["spec"]
    lines, volumes = ["set -e"], {}
    for volume in spec["volumes"]:
        place = volumes[volume["name"]] = folder / "volumes" / volume["name"]
        place.mkdir(parents=True)
        medium = volume["emptyDir"]
        if medium.get("medium") == "Memory":
            options = f"size={_size(medium)},mode=777,nosuid,nodev"
            lines.append(f"mount -t tmpfs -o {options} part {place}")
        else:
            place.chmod(0o777)
    run = " ".join([*RUNSC, f"--network={network}", f"--root={folder}/state", "run", "--bundle"])
    for container in [*spec["initContainers"], *spec["containers"]]:
        bundle = folder / container["name"]
        _write_bundle(container, spec, bundle, volumes, images[container["image"]])
        name = f"{manifest['metadata']['name']}-{container['name']}"
        if container in spec["initContainers"]:
            lines.append(
                f"{run} {bundle} {name} < /dev/null || {{ touch {bundle}/failed; exit 1; }}"
            )
        else:
            lines += [*_states(volumes, bundle), f"touch {folder}/running"]
            lines.append(f"exec {run} {bundle} {name}")
    script = folder / "pod.sh"
    script.write_text("\n".join(lines) + "\n")
    return script


def _states(volumes, bundle):
    """Commands that enter owners and modes, as the containers before have left them."""
    for name, place in volumes.items():
        state = f'$(stat -c \'"mode=%a","uid=%u","gid=%g"\' {place})'
        yield f'sed -i "s/\\"@{name}@\\"/{state}/" {bundle}/config.json'


def _write_bundle(container, pod, bundle, volumes, image):
    root, own, log = bundle / "root", container["securityContext"], bundle / "termination-log"
    shutil.copytree(image, root)
    root.chmod(0o755)
    log.touch(0o666)
    for name in PROGRAMS:
        (root / name).symlink_to(f"usr/{name}")
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        _bind("/usr", "/usr", True),
        _bind("/dev/termination-log", log, False),
    ]
    for mount in container["volumeMounts"]:
        name, target = mount["name"], mount["mountPath"]
        (volume,) = (each["emptyDir"] for each in pod["volumes"] if each["name"] == name)
        if volume.get("medium") == "Memory" and container in pod["containers"]:
            # gVisor's kernel holds such a volume itself.
            options = [f"size={_size(volume)}", f"@{name}@", "nosuid", "nodev"]
            tmpfs = {"type": "tmpfs", "source": "tmpfs", "options": options}
            mounts.append({"destination": target} | tmpfs)
        else:
            mounts.append(_bind(target, volumes[name], mount.get("readOnly", False)))
    for mount in mounts:
        if not mount["destination"].startswith("/dev/"):
            (root / mount["destination"][1:]).mkdir(parents=True, exist_ok=True)
    capabilities = [f"CAP_{name}" for name in own["capabilities"]["add"]]
    assert own["capabilities"]["drop"] == ["ALL"]
    process = {
        "terminal": False,
        "user": {"uid": own["runAsUser"], "gid": own["runAsGroup"]},
        "args": container["command"],
        "env": ["PATH=/usr/bin", *(f"{e['name']}={e['value']}" for e in container.get("env", ()))],
        "cwd": container.get("workingDir", "/"),
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        "noNewPrivileges": not own["allowPrivilegeEscalation"],
    }
    config = {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": str(root), "readonly": own["readOnlyRootFilesystem"]},
        "hostname": pod["hostname"],
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]},
    }
    (bundle / "config.json").write_text(json.dumps(config))


def _size(volume):
    return volume["sizeLimit"].removesuffix("i").lower()


def _bind(target, source, read_only):
    options = ["rbind", "ro" if read_only else "rw"]
    return {"destination": target, "type": "bind", "source": str(source), "options": options}
