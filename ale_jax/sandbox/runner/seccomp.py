"""System calls that the agent may not use, in addition to those that the runtime forbids.

Namespaces do not isolate these: keyrings and io_uring outlive or bypass the sandbox, and the others
are frequent sources of kernel vulnerabilities. Of the socket families, only those that the network
namespace isolates are allowed (AF_VSOCK, for example, reaches the hypervisor from any namespace).
"""

import ctypes
import errno
import os
import socket
import struct

from . import kernel

DENIED = (
    "add_key",
    "request_key",
    "keyctl",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
)
# Calls that allocate memory outside of any process or size-limited directory.
HOARDS = ("memfd_create", "memfd_secret", "shmget", "semget", "msgget")
# Calls that could give a process of root's the user id of the runner.
SET_IDS = ("setuid", "setreuid", "setresuid")
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
NETLINK = socket.AF_NETLINK  # refused with HOARDS, as the memory of such sockets is not counted
# Machine -> (AUDIT_ARCH, numbers of `socket`, of DENIED, HOARDS and SET_IDS), from the kernel's
# tables.
TABLES = {
    "x86_64": (
        *(0xC000003E, 41, (248, 249, 250, 321, 298, 323, 425)),
        *((319, 447, 29, 64, 68), (105, 113, 117)),
    ),
    "aarch64": (
        *(0xC00000B7, 198, (217, 218, 219, 280, 241, 282, 425)),
        *((279, 447, 194, 190, 186), (146, 145, 147)),
    ),
}
FIRST_X32 = 0x40000000  # x32 numbers of x86-64 calls start here; other machines have none so high

# struct seccomp_data: offsets of the call number, architecture and low half of argument 0, which is
# followed by the other arguments of 8 bytes each.
NUMBER, ARCH, ARGUMENT = 0, 4, 16
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
PR_SET_SECCOMP, MODE_FILTER = 22, 2


class Filter:
    """A program for seccomp(2). OSError for a machine whose call numbers are not in the table.

    denies_hoards: also refuse HOARDS. denied_id: the user id that SET_IDS must not set.
    """

    def __init__(self, denies_hoards: bool, denied_id: int):
        machine = os.uname().machine
        if machine not in TABLES:
            raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
        arch, socket_number, denied, hoards, set_ids = TABLES[machine]
        refuse = (RETURN, 0, 0, ERROR | errno.EPERM)
        program = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, arch), refuse]
        program += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, FIRST_X32), refuse]
        for number in (*denied, *(hoards if denies_hoards else ())):
            program += [(EQUAL, 0, 1, number), refuse]
        for number in set_ids:
            checks = [(LOAD, 0, 0, ARGUMENT + 8 * each) for each in range(3)]
            steps = [step for check in checks for step in (check, (EQUAL, 0, 1, denied_id), refuse)]
            program += [(EQUAL, 0, len(steps) + 1, number), *steps, (RETURN, 0, 0, ALLOW)]
        program += [(EQUAL, 1, 0, socket_number), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, ARGUMENT)]
        for family in FAMILIES if denies_hoards else (*FAMILIES, NETLINK):
            program += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
        program += [(RETURN, 0, 0, ERROR | errno.EAFNOSUPPORT)]
        self._code = ctypes.create_string_buffer(
            b"".join(struct.pack("HBBI", *step) for step in program)
        )
        header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header)

    def apply(self) -> None:
        """Applies the filter permanently to this process and all its future children."""
        kernel.call("prctl", PR_SET_SECCOMP, MODE_FILTER, self._header, 0, 0)
