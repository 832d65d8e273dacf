"""What commands may try, and that it comes to nothing; as root and as an ordinary user."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time

import pytest

from rime_jax.envs.codebase import bubblewrap, sandbox
from tests.envs.codebase import repositories

ORDINARY = 54321
_AGAIN = "RIME_JAX_TEST_ORDINARY_USER"
LIMITS = sandbox.Limits(
    timeout_s=20, memory_bytes=400 << 20, processes=48, written_bytes=8 << 20, written_files=400,
    printed_bytes=2 << 20, output_bytes=10_000)


@pytest.fixture(scope="module")
def box():
    repositories.box().close()
    made = bubblewrap.Bubblewrap(LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    place = tmp_path_factory.mktemp("tree")
    (place / "file").write_text("pristine\n")
    for path in [place, *place.rglob("*"), *place.parents[:2]]:
        path.chmod(0o755)
        if os.geteuid() == 0 and path not in place.parents:
            os.chown(path, sandbox.USER, sandbox.USER)
    return sandbox.Base(place)


@pytest.fixture
def workspace(box, base):
    made = box.open(base)
    yield made
    made.close()


def python(code):
    return f"/usr/bin/env python3 - <<'EOF'\n{code}\nEOF"


def ours(mark):
    """Processes of this machine with a mark in their command line."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            pass
    return found


def gone(mark):
    for _ in range(100):
        if not ours(mark):
            return True
        time.sleep(0.05)
    return False


def test_files_of_the_host_are_out_of_sight(workspace, tmp_path):
    secret = tmp_path / "hidden_tests.jsonl"
    secret.write_text("SECRET-ROW")
    secret.chmod(0o644)
    home = pathlib.Path.home()
    result = workspace.run(
        f"cat {secret}; cat /proc/self/root{secret}; cat /proc/1/root{secret}; ls {home}; "
        f"ls {pathlib.Path(__file__).parent}; ls /etc /root /var /sys; "
        "find / -xdev -name hidden_tests.jsonl 2>/dev/null; echo done")
    assert "SECRET-ROW" not in result.output and "test_escape" not in result.output
    assert "passwd" not in result.output and result.output.endswith("done\n")


def test_other_episodes_are_out_of_sight_and_the_tree_stays_as_it_was(box, base):
    first, second = box.open(base), box.open(base)
    try:
        first.run("echo MINE > file; echo MINE > /tmp/x; echo MINE > ~/x; echo MINE > /dev/shm/x")
        seen = second.run("cat file; ls -A /tmp ~ /dev/shm; ps aux 2>/dev/null | wc -l")
        again = first.run("cat file /tmp/x ~/x")
    finally:
        first.close()
        second.close()
    assert "MINE" not in seen.output and seen.output.startswith("pristine")
    assert again.output == "MINE\nMINE\nMINE\n"
    assert (base.tree / "file").read_text() == "pristine\n"


def test_processes_of_the_trainer_are_out_of_sight(workspace):
    result = workspace.run(python(
        "import os\n"
        "numbers = [n for n in os.listdir('/proc') if n.isdigit()]\n"
        "print(len(numbers), max(map(int, numbers)) < 50)\n"
        "for n in numbers:\n"
        "    print(open(f'/proc/{n}/cmdline').read())\n"
        f"try:\n    os.kill({os.getpid()}, 0)\n    print('SE' + 'EN')\n"
        "except OSError: pass"))
    assert "pytest" not in result.output and "SEEN" not in result.output
    assert "warden" not in result.output and int(result.output.split()[0]) < 6


def test_there_is_no_network_not_even_to_this_machine(workspace):
    name = f"\0rime-jax-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind(name)
        hidden.listen()
        result = workspace.run(python(
            "import socket\n"
            f"for family, address in [(2, ('127.0.0.1', {server.getsockname()[1]})),\n"
            f"                        (2, ('1.1.1.1', 53)), (1, {name!r})]:\n"
            "    try:\n"
            "        s = socket.socket(family); s.settimeout(2); s.connect(address)\n"
            "        print('REACHED', address)\n"
            "    except OSError as error: print(type(error).__name__)\n"
            "for family in (40, 38, 17):  # vsock, alg, packet\n"
            "    try: socket.socket(family, 1); print('REACHED', family)\n"
            "    except OSError as error: print(type(error).__name__)\n"))
    assert "REACHED" not in result.output and len(result.output.split()) == 6


def test_a_fork_bomb_ends_with_its_command(workspace):
    result = workspace.run("bomb() { bomb | bomb & }; bomb; sleep 2; echo over", timeout_s=4)
    assert result.seconds < 15
    assert workspace.run("echo alive; ls /proc | grep -c '^[0-9]'").output.startswith("alive\n")


def test_a_fork_bomb_leaves_others_their_processes(box, base):
    bomber, other = box.open(base), box.open(base)
    try:
        thread = threading.Thread(target=bomber.run, args=(
            "bomb() { bomb | bomb & }; bomb; sleep 3", 3))
        thread.start()
        time.sleep(0.5)
        result = other.run("for i in 1 2 3 4 5; do (true) & done; wait; echo fine")
        thread.join()
    finally:
        bomber.close()
        other.close()
    assert result.output == "fine\n"


@pytest.mark.parametrize("place", [sandbox.WORKDIR, "/tmp", "/dev/shm", sandbox.HOME])
def test_disks_fill_up_to_the_limit_and_files_too(workspace, place):
    result = workspace.run(
        f"for i in 1 2 3 4; do head -c 4000000 /dev/zero > {place}/big$i; done; "
        "du -sbc /testbed /tmp /dev/shm /home | tail -1; rm -f " + f"{place}/big*; "
        f"for i in $(seq 1000); do : > {place}/f$i || break; done 2>/dev/null; ls {place} | wc -l")
    assert "No space left" in result.output
    total, files = result.output.split()[-3], result.output.split()[-1]
    assert int(total) <= LIMITS.written_bytes + 100_000 and int(files) <= LIMITS.written_files


def test_nothing_else_can_be_written(workspace):
    result = workspace.run(
        "for d in / /dev /usr /usr/lib /opt /etc /proc /proc/sys/kernel /sys; do "
        "(touch $d/x 2>/dev/null && echo WROTE $d); done; "
        "(echo 1 > /proc/sys/kernel/panic) 2>/dev/null && echo WROTE panic; "
        "(echo x > /proc/sysrq-trigger) 2>/dev/null && echo WROTE sysrq; true")
    assert "WROTE" not in result.output


def test_endless_output_is_cut_off(workspace):
    result = workspace.run("head -c 1000000000 /dev/zero | tr '\\0' x")
    assert result.status == "output"
    assert len(result.output) <= LIMITS.output_bytes and result.dropped_bytes > 0


def test_memory_over_the_limit_ends_the_command(workspace):
    one = workspace.run(python("x = bytearray(1 << 30)"))
    assert one.exit_code != 0 and "MemoryError" in one.output
    many = workspace.run(
        "for i in 1 2 3 4; do python3 -c 'x = b\"1\" * (200 << 20); import time; time.sleep(15)' & "
        "done; wait")
    assert many.status == "memory"


def test_memory_without_a_process_is_refused(workspace):
    """Files without a name are in no limit; the standard input cannot grow either."""
    result = workspace.run(python(
        "import os\n"
        "for make in (lambda: os.memfd_create('x'), lambda: os.write(0, b'x' * 1_000_000)):\n"
        "    try: make(); print('MADE')\n"
        "    except OSError: print('refused')"))
    assert "MADE" not in result.output


def test_what_is_daemonised_dies_with_its_command(workspace):
    mark = f"3{os.getpid()}.25"
    result = workspace.run(
        f"setsid nohup sleep {mark} >/dev/null 2>&1 & disown; (trap '' TERM INT HUP; sleep {mark}) "
        "& sleep 0.2; echo left")
    assert result.output == "left\n" and gone(mark)


def test_ignoring_signals_does_not_extend_the_time(workspace):
    mark = f"4{os.getpid()}.25"
    result = workspace.run(
        f"trap '' TERM INT HUP QUIT; while true; do sleep {mark} || true; done", timeout_s=0.5)
    assert (result.status, result.exit_code < 0) == ("timeout", True)
    assert result.seconds < 10 and gone(mark)


def test_links_lead_nowhere_outside(workspace, tmp_path):
    (tmp_path / "secret").write_text("SECRET")
    result = workspace.run(
        f"ln -s {tmp_path}/secret a; cat a; ln -s /proc/1/root/{tmp_path}/secret b; cat b; "
        "ln -s ../../../../../../etc/shadow c; cat c; ln /usr/bin/env hard; echo done")
    assert "SECRET" not in result.output and "root:" not in result.output
    assert result.output.endswith("done\n") and "hard" in result.output


def test_further_namespaces_mounts_keys_and_tracing_are_refused(workspace):
    result = workspace.run(
        "unshare -Ur true && echo DID; unshare -m true && echo DID; mount -t tmpfs x /tmp && "
        "echo DID; chroot / true && echo DID; " + python(
            "import ctypes, os\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "machine = os.uname().machine\n"
            "calls = {'x86_64': (250, 101, 321), 'aarch64': (219, 117, 280)}[machine]\n"
            "for call in calls:  # keyctl, ptrace, bpf\n"
            "    done = libc.syscall(call, 0, 0, 0, 0, 0) >= 0\n"
            "    if done or ctypes.get_errno() != 1: print('DID')\n"
        ))
    assert "DID" not in result.output


def test_commands_have_no_privileges_and_few_descriptors(workspace):
    result = workspace.run(
        "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; id -u; "
        "ls /proc/self/fd; env | sort | cut -d= -f1 | tr '\\n' ' '")
    assert result.output.count("0000000000000000") == 2
    assert "NoNewPrivs:\t1" in result.output and "\n1000\n0\n1\n2\n3\n" in result.output
    assert not {"AWS", "TOKEN", "KEY=", "PYTHONPATH"} & set(result.output.split())


@pytest.mark.parametrize("command", ["echo \0 x", "x" * 10_000_000, "echo \ud800"],
                         ids=["nul", "ten_megabytes", "half_a_surrogate"])
def test_commands_that_no_shell_takes_are_answered(workspace, command):
    result = workspace.run(command)
    assert result.exit_code == 126 and "was not run" in result.output
    assert workspace.run("echo on").output == "on\n"


def test_output_of_any_bytes_is_text(workspace):
    result = workspace.run(
        "printf 'a\\0b\\xff\\xfe\\n'; head -c 100000 /dev/urandom; printf '\\nend'")
    assert result.output.startswith("a\0b\ufffd") and result.output.endswith("\nend")
    result.output.encode()


def test_a_huge_environment_harms_only_its_command(workspace):
    result = workspace.run(
        "export X=$(head -c 3000000 /dev/zero | tr '\\0' x); env | wc -c; echo on")
    assert result.output.endswith("on\n")


def test_input_is_what_is_given_and_otherwise_empty(workspace):
    assert workspace.run("cat; cat", stdin="text \udcff").output == "text \ufffd"
    assert workspace.run("read x; echo $?; cat /proc/1/fd/0").output == "1\n"


@pytest.mark.skipif(os.geteuid() != 0 or bool(os.environ.get(_AGAIN)),
                    reason="runs as root, of whom the ordinary user's run is a part")
def test_all_of_this_holds_for_an_ordinary_user(tmp_path_factory):
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed, which this needs to become another user")
    repositories.box().close()
    place = tmp_path_factory.mktemp("ordinary")
    for parent in [place, *place.parents[:2]]:
        parent.chmod(0o755)
    os.chown(place, ORDINARY, ORDINARY)
    become = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
    variables = {
        "PATH": os.environ["PATH"], "HOME": str(place), _AGAIN: "1", "JAX_PLATFORMS": "cpu",
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": sysconfig.get_path("purelib")}
    root = pathlib.Path(__file__).parents[3]

    def call(python, *arguments):
        # By env: setpriv itself would still start what only root may.
        return subprocess.run(
            [*become, "env", python, *arguments], cwd=root, env=variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    pythons = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    python = next((name for name in pythons
                   if not call(name, "-c", "import pytest, hypothesis, rime_jax").returncode), None)
    if python is None:
        pytest.skip("an ordinary user may not read this checkout or any Python with pytest")
    done = call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={place}/t",
                "-rs", str(pathlib.Path(__file__)))
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout and "no sandbox here" not in done.stdout
