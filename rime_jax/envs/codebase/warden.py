"""The first process of a bubblewrap workspace; started by `bubblewrap.py`, imports nothing of ours.

    python -I -S warden.py FD

It makes a user, a mount and a process namespace, lays a size-limited overlay over the shared tree,
and then runs one command after another, each in a bubblewrap of its own. All that a workspace is
hangs on this process: it is process 1 of its namespace, so when it ends (asked to, killed, or
because the trainer at the other end of the socket is gone) the kernel kills every process and drops
every mount and file of the workspace. Nothing needs to be cleaned up.

Messages over the socket: 4 bytes of length (network order), then a JSON object. The first says how
to set up, each further one is a command; each is answered by one.
"""

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
# Where everything is mounted, in the namespace alone. It exists on every Linux, any user may pass
# through it, and nobody keeps files there that a mount could hide.
HERE = "/sys"

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    request = receive(channel)
    if request is None:
        return
    try:
        if os.geteuid() == 0:
            request["mounts"] = _for_anyone(request["mounts"], request["uid"])
        _enter_namespaces()
    except OSError as error:
        send(channel, {"error": str(error)})
        return
    # Only children of the caller of unshare are in the new process namespace.
    child = os.fork()
    if child:
        channel.close()
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
        os.waitpid(child, 0)
        return
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        try:
            _lay_overlay(request["mounts"][0][0], request["limits"])
        except OSError as error:
            send(channel, {"error": str(error)})
            return
        send(channel, {"ready": True})
        while (command := receive(channel)) is not None:
            send(channel, run(command, request, channel))
    except ConnectionError:
        # Closed meanwhile: nobody waits for the answer.
        return


def run(command: dict, setup: dict, channel: socket.socket) -> dict:
    """One command in a fresh bubblewrap; every process that it leaves behind is killed."""
    limits = setup["limits"] | {"timeout_s": command["timeout_s"]}
    began = time.monotonic()
    # By file: what stands on a command line can be read by everything inside.
    calls = _file(setup["seccomp"].encode("latin-1"))
    arguments = [*_bubblewrap(setup), *(["--seccomp", str(calls)] if setup["seccomp"] else [])]
    options = _file("\0".join(arguments).encode())
    stdin = _file(command["stdin"].encode("utf-8", "surrogateescape"))
    with subprocess.Popen(
        [setup["bwrap"], "--args", str(options), "--", *command["argv"]], stdin=stdin,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={}, pass_fds=[options, calls],
        preexec_fn=lambda: _limit(limits), start_new_session=True,
    ) as process:
        for descriptor in (options, stdin, calls):
            os.close(descriptor)
        status, output, dropped = watch(process, limits, channel.fileno(), _memory)
        _kill_all()
    code = process.returncode
    _reap()
    return {"status": status, "exit_code": code, "output": output.decode("utf-8", "replace"),
            "dropped_bytes": dropped, "seconds": time.monotonic() - began}


def watch(
    process: subprocess.Popen, limits: dict, owner: int | None, memory: Callable[[], int]
) -> tuple[str, bytes, int]:
    """Reads the output until the command ends or passes a limit: (status, head + tail, dropped).

    Args:
      process: with its output in a pipe.
      limits: those of `sandbox.Limits`.
      owner: a descriptor that can be read when nobody waits any more: this process then ends.
        None: somebody always does.
      memory: bytes that the command uses now.
    """
    out = process.stdout.fileno()
    os.set_blocking(out, False)
    ended = os.pidfd_open(process.pid)
    half = limits["output_bytes"] // 2
    head, tail, total = bytearray(), bytearray(), 0
    deadline = time.monotonic() + limits["timeout_s"]
    status, open_, measured = "done", True, 0.0
    poll = select.poll()
    poll.register(out, select.POLLIN)
    poll.register(ended, select.POLLIN)
    if owner is not None:
        # The trainer is gone: its socket has nothing to read during a command, but for its end.
        poll.register(owner, select.POLLIN)
    try:
        while True:
            ready = {fd for fd, _ in poll.poll(50)}
            now = time.monotonic()
            if owner in ready:
                os._exit(0)
            if out in ready and open_:
                piece = os.read(out, 1 << 16)
                if not piece:
                    poll.unregister(out)
                    open_ = False
                total += len(piece)
                room = max(0, half - len(head))
                head += piece[:room]
                tail = (tail + piece[room:])[-half:]
            if ended in ready and (out not in ready or not open_):
                break
            if now > deadline:
                status = "timeout"
            elif total > limits["printed_bytes"]:
                status = "output"
            elif now - measured > 0.1:
                measured = now
                if memory() > limits["memory_bytes"]:
                    status = "memory"
            if status != "done":
                break
    finally:
        os.close(ended)
    return status, bytes(head + tail), total - len(head) - len(tail)


def _bubblewrap(setup: dict) -> list[str]:
    argv = [
        "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session",
        "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL",
        "--proc", "/proc", "--dev", "/dev", "--bind", f"{HERE}/over/shm", "/dev/shm",
        "--bind", f"{HERE}/over/tmp", "/tmp", "--bind", f"{HERE}/over/home", "/home",
    ]
    for source, target in setup["mounts"][1:]:
        argv += ["--ro-bind", source, target]
    for target, link in setup["links"]:
        argv += ["--symlink", target, link]
    argv += ["--bind", f"{HERE}/tree", setup["workdir"], "--chdir", setup["workdir"], "--clearenv"]
    for name, value in setup["environment"].items():
        argv += ["--setenv", name, value]
    return argv + ["--remount-ro", "/dev", "--remount-ro", "/"]


def _file(data: bytes) -> int:
    """A descriptor from which the data can be read, and to which nothing can be added."""
    descriptor = os.memfd_create("data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _limit(limits: dict) -> None:
    # The kernel out of memory shall take a command, never the trainer.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    for name, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, limits["written_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def _for_anyone(mounts: list, uid: int) -> list:
    """As root: binds each source where the workspace's own user can reach it, and becomes him."""
    _check(libc.unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", HERE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    found = []
    for i, (source, target) in enumerate(mounts):
        place = f"{HERE}/{i}"
        if os.path.isdir(source):
            os.mkdir(place)
        else:
            open(place, "w").close()
        _mount(source, place, None, MS_BIND)
        found.append((place, target))
    for name in ("over", "tree"):
        os.mkdir(f"{HERE}/{name}")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # Whoever changed its user may not write its own maps otherwise.
    libc.prctl(PR_SET_DUMPABLE, 1)
    return found


def _enter_namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _lay_overlay(tree: str, limits: dict) -> None:
    if not os.path.isdir(f"{HERE}/tree"):
        _mount("tmpfs", HERE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
        for name in ("over", "tree"):
            os.mkdir(f"{HERE}/{name}")
    size, files = limits["written_bytes"], limits["written_files"]
    _mount("tmpfs", f"{HERE}/over", "tmpfs", MS_NOSUID | MS_NODEV,
           f"mode=755,size={size},nr_inodes={files}")
    for name in ("changes", "work", "tmp", "home", "shm"):
        os.mkdir(f"{HERE}/over/{name}")
    _mount("overlay", f"{HERE}/tree", "overlay", MS_NOSUID | MS_NODEV,
           f"lowerdir={_escaped(tree)},upperdir={HERE}/over/changes,workdir={HERE}/over/work,"
           "userxattr")
    # The old one speaks of processes by other numbers; bubblewrap reads it too.
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)


def _escaped(path: str) -> str:
    """As overlayfs wants it: colons part directories, commas options."""
    for character in "\\:,":
        path = path.replace(character, "\\" + character)
    return path


def _memory() -> int:
    """Bytes resident in all processes of the workspace."""
    pages = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/statm") as file:
                    pages += int(file.read().split()[1])
            except (OSError, IndexError):
                pass
    return pages * resource.getpagesize()


def _kill_all() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _reap() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [x.encode() if x is not None else None for x in (source, target, kind, options)]
    _check(libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]),
           f"mount {kind or source} on {target}")


def _check(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def send(channel: socket.socket, message: dict) -> None:
    data = json.dumps(message).encode()
    channel.sendall(struct.pack("!I", len(data)) + data)


def receive(channel: socket.socket) -> dict | None:
    """The next message; None when the other end is closed."""
    def exactly(n: int) -> bytes | None:
        data = b""
        while len(data) < n:
            piece = channel.recv(n - len(data))
            if not piece:
                return None
            data += piece
        return data

    head = exactly(4)
    body = None if head is None else exactly(struct.unpack("!I", head)[0])
    return None if body is None else json.loads(body)


if __name__ == "__main__":
    main()
