"""The versions of what is installed, against what the packages require of each other.

It reads the packages' metadata and imports none of them, since wrong versions may prevent that.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ale_jax.system.doctor.findings import Finding, Report, fail, ok

PYTHON, OURSELVES = "Python", "ale-jax"
SHOWN = (
    *(PYTHON, "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "ray", "transformers"),
    OURSELVES,
)
# What makes an accelerator's extra of jax: the compiler of TPUs, or the plugin of a kind of GPU.
ACCELERATOR = re.compile(r"libtpu|jax-\w+-plugin")
EXTRA = re.compile(r'extra == "([\w-]+)"')

Find = Callable[[str], str | None]  # from a package's name to its version, None if it is missing


def software_report(process: int) -> Report:
    """Returns a report that begins with the versions. process: the number of this one."""
    report = Report(process)
    if find(OURSELVES) is None:
        report.add(fail("versions", f"{OURSELVES} is not installed", "make install"))
        return report
    python = f"{PYTHON}{metadata(OURSELVES)['Requires-Python']}"
    ours, jaxs = (requires(name) or [] for name in (OURSELVES, "jax"))
    report.add(check_versions([python, *ours, *jaxs], find))
    report.add(check_accelerator(jaxs, find))
    return report


def find(name: str) -> str | None:
    try:
        return platform.python_version() if name == PYTHON else version(name)
    except PackageNotFoundError:
        return None


def accelerators(requirements: Sequence[str], find: Find) -> dict[str, str]:
    """Returns the version of each accelerator's package that is installed, of those that jax
    names."""
    names = {canonicalize_name(Requirement(each).name) for each in requirements}
    return {n: have for n in sorted(names) if ACCELERATOR.fullmatch(n) and (have := find(n))}


def check_versions(requirements: Sequence[str], find: Find) -> Finding:
    """Checks the versions of the installed packages. requirements: as packages state them, e.g.
    "jax>=0.10"; extras are left out."""
    needed = [r for r in map(Requirement, requirements) if _applies(r, "")]
    if wrong := list(unmet(needed, find)):
        return fail("versions", "; ".join(wrong), "make install, in a new .venv if it persists")
    return ok("versions", ", ".join(f"{name} {have}" for name in SHOWN if (have := find(name))))


def check_accelerator(requirements: Sequence[str], find: Find) -> Finding:
    """Checks whether the accelerator's package and jaxlib are the pair that jax was released with.

    requirements: jax's own, with its extras.
    """
    present = accelerators(requirements, find)
    if not present:
        return ok("accelerator", "none is installed, so jax computes on the CPU")
    found = ", ".join(f"{name} {have}" for name, have in present.items())
    parsed = list(map(Requirement, requirements))
    for extra in dict.fromkeys(EXTRA.findall("\n".join(requirements))):
        needed = [r for r in parsed if _applies(r, extra) and not _applies(r, "")]
        if present.keys().isdisjoint(canonicalize_name(r.name) for r in needed):
            continue
        if wrong := list(unmet(needed, find)):
            pair = f"pip install 'jax[{extra}]=={find('jax')}'"
            return fail("accelerator", "; ".join(wrong), f"install what jax names: {pair}")
    return ok("accelerator", f"{found}, of the versions that jax {find('jax')} names")


def unmet(requirements: Iterable[Requirement], find: Find) -> Iterator[str]:
    for requirement in requirements:
        have, wanted = find(requirement.name), requirement.specifier
        if have is None:
            yield f"{requirement.name} is missing (needs {wanted or 'any version'})"
        elif not wanted.contains(have, prereleases=True):
            yield f"{requirement.name} is {have} (needs {wanted})"


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
