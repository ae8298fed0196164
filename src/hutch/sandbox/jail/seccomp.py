"""Seccomp filter for guests, as a BPF program for `bwrap --seccomp`.

It allows every system call that is not listed, because an allow list would break with the next Deno or glibc.
The denied calls are those that Deno never makes and that kernel exploits and namespace escapes use.
"""

from __future__ import annotations

import errno
import os
import struct
from functools import lru_cache

import msgspec

# System call numbers on x86_64 and aarch64, by name. None if the architecture does not have the call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
# Calls that create a process rather than a thread. The flags of clone are checked separately.
FORKS: dict[str, tuple[int | None, int | None]] = {"fork": (57, None), "vfork": (58, None)}


class Architecture(msgspec.Struct, frozen=True):
    column: int
    audit: int
    clone: int
    socket: int
    socketpair: int
    ioctl: int
    clone3: int = 435
    x32: bool = False


ARCHITECTURES = {
    "x86_64": Architecture(0, 0xC000003E, clone=56, socket=41, socketpair=53, ioctl=16, x32=True),
    "aarch64": Architecture(1, 0xC00000B7, clone=220, socket=198, socketpair=199, ioctl=29),
}

# Constants from linux/bpf_common.h and linux/seccomp.h.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
# Offsets in struct seccomp_data. Only the lower half of an argument matters here (little-endian).
_NUMBER, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_X32_BIT = 0x40000000
_CLONE_THREAD = 0x00010000
# The flags NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET of clone. The flag NEWTIME exists
# only in clone3.
_CLONE_NEW = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6; not AF_VSOCK, which network namespaces do not confine


def is_supported(machine: str | None = None) -> bool:
    return (machine or os.uname().machine) in ARCHITECTURES


@lru_cache
def filter_program(machine: str | None = None, *, forks: bool = False) -> bytes:
    """Returns the filter as an array of struct sock_filter.

    Without `forks`, a guest may create threads but no processes.
    """
    architecture = ARCHITECTURES[machine or os.uname().machine]
    denied = [row[architecture.column] for row in DENIED.values()]
    if not forks:
        denied += [row[architecture.column] for row in FORKS.values()]

    code = _Assembler()
    code.add(_LOAD, _ARCH)
    code.add(_EQUAL, architecture.audit, otherwise="kill")
    code.add(_LOAD, _NUMBER)
    if architecture.x32:
        code.add(_AT_LEAST, _X32_BIT, then="kill")
    code.add(_EQUAL, architecture.clone, then="clone")
    code.add(_EQUAL, architecture.socket, then="socket")
    code.add(_EQUAL, architecture.socketpair, then="socket")
    code.add(_EQUAL, architecture.ioctl, then="ioctl")
    # Answer clone3 with ENOSYS, because a filter cannot read the flags behind its pointer. glibc and Rust
    # then fall back to clone.
    code.add(_EQUAL, architecture.clone3, then="absent")
    for number in denied:
        if number is not None:
            code.add(_EQUAL, number, then="denied")
    code.add(_RETURN, _ALLOW)

    code.label("clone")
    code.add(_LOAD, _ARG0)
    code.add(_ANY_BIT, _CLONE_NEW, then="denied")
    if not forks:
        code.add(_ANY_BIT, _CLONE_THREAD, otherwise="denied")
    code.add(_RETURN, _ALLOW)

    code.label("socket")
    code.add(_LOAD, _ARG0)
    for family in _FAMILIES:
        code.add(_EQUAL, family, then="allow")
    code.add(_RETURN, _ERRNO | errno.EAFNOSUPPORT)

    code.label("ioctl")
    code.add(_LOAD, _ARG1)
    code.add(_EQUAL, _TIOCSTI, then="denied")
    code.add(_EQUAL, _TIOCLINUX, then="denied")
    code.add(_RETURN, _ALLOW)

    code.add_return("allow", _ALLOW)
    code.add_return("denied", _ERRNO | errno.EPERM)
    code.add_return("absent", _ERRNO | errno.ENOSYS)
    code.add_return("kill", _KILL)
    return code.assemble()


def filter_fd(*, forks: bool = False) -> int:
    """Returns a descriptor to read the filter from. The caller closes it."""
    handle = os.memfd_create("hutch-seccomp")
    os.write(handle, filter_program(forks=forks))
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


class _Assembler:
    """Assembles instructions with named jump targets. BPF jumps forward only, by at most 255."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, int, str | None, str | None]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        self._labels[name] = len(self._lines)

    def add(self, code: int, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        self._lines.append((code, value, then, otherwise))

    def add_return(self, name: str, value: int) -> None:
        self.label(name)
        self.add(_RETURN, value)

    def assemble(self) -> bytes:
        return b"".join(
            struct.pack("<HBBI", code, self._distance(at, then), self._distance(at, otherwise), value)
            for at, (code, value, then, otherwise) in enumerate(self._lines)
        )

    def _distance(self, at: int, label: str | None) -> int:
        return 0 if label is None else self._labels[label] - at - 1
