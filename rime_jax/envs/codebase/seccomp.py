"""A filter of system calls for what runs in a bubblewrap; imports nothing of ours.

Namespaces leave open what is no file, process or network device: memory in files without a name,
which no limit counts, key rings, sockets to the host of a virtual machine, further namespaces with
their large part of the kernel. Repairs of libraries need none of it.
"""

import errno
import os
import struct

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
# All CLONE_NEW…: cgroup, uts, ipc, user, pid, net, mount.
_NAMESPACES = 0x7E020000
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink: all bound to the network namespace
# The second set of calls of x86-64, which would pass by the numbers below.
_X32 = 0x40000000

# Refused: x86-64 and arm64 numbers.
_REFUSED = {
    # Memory that belongs to no process and no file system of the workspace.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    # Other processes, keys, files by their numbers.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # Mounts and namespaces.
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # The machine, and parts of the kernel that only it needs.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "swapon": (167, 224), "reboot": (169, 142), "acct": (163, 89), "quotactl": (179, 60),
    "syslog": (103, 116),
}
_MACHINES = {
    # Name: (audit number, column above, clone, clone3, socket).
    "x86_64": (0xC000003E, 0, 56, 435, 41),
    "aarch64": (0xC00000B7, 1, 220, 435, 198),
}


def program() -> bytes:
    """For `bwrap --seccomp`; empty on machines whose numbers are not known here."""
    if os.uname().machine not in _MACHINES:
        return b""
    audit, column, clone, clone3, socket = _MACHINES[os.uname().machine]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, audit), _refuse(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if column == 0:
        steps += [(_AT_LEAST, 0, 1, _X32), _refuse(errno.ENOSYS)]
    for numbers in _REFUSED.values():
        steps += [(_EQUAL, 0, 1, numbers[column]), _refuse(errno.EPERM)]
    # Its flags are in memory, where no filter sees them; the C library falls back to clone.
    steps += [(_EQUAL, 0, 1, clone3), _refuse(errno.ENOSYS)]
    steps += [
        (_EQUAL, 0, 4, clone), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 0, 1, _NAMESPACES),
        _refuse(errno.EPERM), (_RETURN, 0, 0, _ALLOW),
    ]
    steps += [(_EQUAL, 0, len(_FAMILIES) + 2, socket), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    steps += [(_EQUAL, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)]
    steps += [_refuse(errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _refuse(number: int) -> tuple[int, int, int, int]:
    return _RETURN, 0, 0, _ERRNO | number
