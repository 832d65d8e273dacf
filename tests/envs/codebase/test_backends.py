"""What every sandbox keeps, with the programs themselves; those that do not work here are skipped.

The containers' image is empty: programs come from this machine's /usr, mounted read-only.
"""

import dataclasses
import io
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import time

import pytest

from rime_jax import streams
from rime_jax.envs.codebase import (
    apptainer,
    bubblewrap,
    containers,
    environment,
    sandbox,
    trees,
    unsafe,
)
from tests.envs.codebase import repositories

ROOT = pathlib.Path(__file__).parents[3]
CLOSED = ("bubblewrap", "docker", "podman", "apptainer")
LIMITS = sandbox.Limits(
    timeout_s=20, memory_bytes=400 << 20, processes=48, written_bytes=8 << 20,
    printed_bytes=2 << 20, output_bytes=10_000)
IMAGE = "localhost/rime_jax-test:1"
FOLDERS = ("usr", "etc", "proc", "sys", "dev", "tmp", "var", "var/tmp", "home", "opt",
           "testbed")
LINKS = [name for name in ("bin", "sbin", "lib", "lib32", "lib64") if os.path.islink(f"/{name}")]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Makes the empty image of a backend, once."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = (_folder(tmp_path_factory.mktemp("image")) if name == "apptainer"
                          else _imported(name))
        return made[name]

    yield make
    for name in set(made) & {"docker", "podman"}:
        subprocess.run([name, "rmi", "--force", IMAGE], stdout=subprocess.DEVNULL, check=True)


def _folder(root):
    root.chmod(0o755)
    for folder in FOLDERS:
        (root / folder).mkdir()
    for link in LINKS:
        (root / link).symlink_to(os.readlink(f"/{link}"))
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (root / "etc" / name).touch()
    _tried(["apptainer", "exec", "--no-privs", "--net", "--network", "none", "--bind", "/usr",
            str(root), "true"])
    return str(root)


def _imported(engine):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for folder in FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for link in LINKS:
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(f"/{link}")
            archive.addfile(entry)
    _tried([engine, "import", "-", IMAGE], data.getvalue())
    _tried([engine, "run", "--rm", "--network", "none", "--mount",
            "type=bind,source=/usr,target=/usr,readonly", "--ulimit", "nofile=1024:1024",
            "--ulimit", "nproc=99:99", "--memory", "99m", IMAGE, "true"])
    return IMAGE


def _tried(command, data=b""):
    """A program that does not even do this cannot be tested; what goes wrong later is ours."""
    done = subprocess.run(command, input=data, capture_output=True)
    if done.returncode:
        pytest.skip(f"{command[0]} does not work here: {done.stderr.decode()[-300:]}")


@pytest.fixture
def opened(request, image, tmp_path):
    """Opens workspaces of the backend that a test is given, on a small tree."""
    name = request.param
    if name in ("docker", "podman", "apptainer") and shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    if name == "bubblewrap":
        repositories.box().close()
    box, base, found = _box(name, image), _base(name, tmp_path), []

    def open_():
        found.append(box.open(base))
        return found[-1]

    open_.name, open_.base, open_.box = name, base, box
    yield open_
    for workspace in found:
        workspace.close()
    box.close()


def _box(name, image):
    if name in ("docker", "podman"):
        return containers.Containers(name, LIMITS, image(name))
    if name == "apptainer":
        return apptainer.Apptainer(LIMITS, image(name))
    return {"bubblewrap": bubblewrap.Bubblewrap, "unsafe": unsafe.Unsafe}[name](LIMITS)


def _base(name, place):
    tree, mounted = place / 'tr,e"e: x', place / "mounted,"
    for folder in (tree, mounted):
        folder.mkdir()
        (folder / "file").write_text(f"{folder.name[0]}\n")
    (tree / "link").symlink_to("file")
    for path in (place, *place.rglob("*"), *place.parents[:2]):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o755)
    if os.geteuid() == 0:
        for path in (tree, *tree.iterdir()):
            os.chown(path, sandbox.USER, sandbox.USER, follow_symlinks=False)
    mounts = [sandbox.Mount(mounted, "/opt/mounted")]
    if name in ("docker", "podman", "apptainer"):
        mounts.append(sandbox.Mount(pathlib.Path("/usr"), "/usr"))
    return sandbox.Base(tree, () if name == "unsafe" else tuple(mounts), {"X": 'y z,a=b"c\nd'})


every = pytest.mark.parametrize("opened", [*CLOSED, "unsafe"], indirect=True)
closed = pytest.mark.parametrize("opened", CLOSED, indirect=True)


def marked(mark):
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "cmdline").read_bytes():
                found.append(place.name)
        except OSError:
            pass
    return found


def gone(mark):
    for _ in range(100):
        if not marked(mark):
            return True
        time.sleep(0.05)
    return False


@every
def test_a_command_has_its_tree_input_and_variables_and_gives_all_it_printed(opened):
    result = opened().run('cat link; echo err >&2; cat; echo; echo "$X"; pwd; exit 125', stdin="in")
    *lines, where = result.output.splitlines()
    assert lines == ["t", "err", "in", 'y z,a=b"c', "d"]
    assert where == sandbox.WORKDIR or opened.name == "unsafe"
    assert (result.exit_code, result.status, result.dropped_bytes) == (125, "done", 0)


@every
def test_what_engines_say_of_themselves_cannot_be_forged(opened):
    result = opened().run("echo FATAL: no image; exit 255")
    assert (result.output, result.exit_code) == ("FATAL: no image\n", 255)


@every
def test_files_last_between_commands_variables_do_not_and_workspaces_are_apart(opened):
    one, other = opened(), opened()
    one.run("echo MINE > file; mkdir -p new; touch new/x ~/h; Y=1; export Y")
    assert one.run("cat file; ls new ~ | sort; echo \"Y=$Y\"").output.split()[0] == "MINE"
    assert "Y=\n" in one.run("echo \"Y=$Y\"").output
    assert other.run("cat file; ls -A ~; test -e new || echo none").output == "t\nnone\n"
    assert (opened.base.tree / "file").read_text() == "t\n"


@every
def test_time_that_runs_out_ends_a_command_and_its_children(opened):
    workspace, mark = opened(), f"3{os.getpid()}.5"
    result = workspace.run(f"trap '' TERM INT HUP; echo on; sleep {mark} & sleep {mark}; sleep 9",
                           timeout_s=1.5)
    assert (result.status, result.output) == ("timeout", "on\n") and result.seconds < 10
    assert gone(mark) and workspace.run("cat file").output == "t\n"


@closed
def test_nothing_outlives_its_command(opened):
    workspace, mark = opened(), f"4{os.getpid()}.5"
    result = workspace.run(
        f"setsid nohup sleep {mark} >/dev/null 2>&1 & disown; sleep .1; echo left")
    assert result.output == "left\n" and not marked(mark)


@every
def test_long_output_keeps_head_and_tail_and_endless_output_ends(opened):
    workspace = opened()
    result = workspace.run("seq 100000; echo end")
    assert result.output.startswith("1\n2\n") and result.output.endswith("end\n")
    assert result.dropped_bytes > 500_000
    assert workspace.run("yes").status == "output"


@closed
def test_there_is_no_network(opened):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = opened().run(
            f"(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo REACHED; "
            "tail -n +3 /proc/net/dev | grep -v ' lo:'; true")
    assert result.output == ""


@closed
def test_files_of_the_host_are_out_of_sight_and_mounts_cannot_be_written(opened, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    secret.chmod(0o644)
    result = opened().run(
        f"cat {secret} /proc/1/root{secret} /proc/self/root{secret}; cat /opt/mounted/file; "
        "for d in / /usr /etc /opt /opt/mounted /proc/sys/kernel /sys; do "
        "(touch $d/x) 2>/dev/null && echo WROTE $d; done; "
        "(echo x > /proc/sys/kernel/core_pattern) && echo WROTE pattern; "
        "(echo x > /opt/mounted/file) && echo WROTE mounted; ls /root /home; true")
    assert "SECRET" not in result.output and "WROTE" not in result.output
    assert "m\n" in result.output
    assert pathlib.Path("/proc/sys/kernel/core_pattern").read_text() != "x\n"


@closed
def test_commands_are_nobody_with_no_privileges(opened):
    result = opened().run("id -u; grep -E '^(CapEff|CapPrm|NoNewPrivs):' /proc/self/status; "
                          "ls /proc/self/fd; mount -t tmpfs x /tmp || echo refused")
    assert result.output.count("0000000000000000") == 2 and "NoNewPrivs:\t1" in result.output
    assert not result.output.startswith("0\n") and result.output.endswith("refused\n")
    assert "\n0\n1\n2\n3\n" in result.output


@closed
def test_a_fork_bomb_harms_its_own_command_alone(opened):
    workspace, other, mark = opened(), opened(), f"5{os.getpid()}.5"
    result = workspace.run(f"bomb() {{ sleep {mark} & bomb | bomb & }}; bomb; sleep 20",
                           timeout_s=3)
    assert result.status in ("timeout", "output") and gone(mark)
    assert workspace.run("seq 3 | tail -1").output == other.run("seq 3 | tail -1").output == "3\n"


@every
def test_a_file_ends_at_its_limit_and_the_workspace_goes_on(opened):
    workspace = opened()
    result = workspace.run("head -c 20000000 /dev/zero > big; ls -l big | cut -d' ' -f5; rm big")
    assert int(result.output.split()[-1]) <= LIMITS.written_bytes
    assert workspace.run("echo x > small; cat small").output == "x\n"


@every
def test_memory_ends_at_its_limit_and_the_workspace_goes_on(opened):
    workspace = opened()
    result = workspace.run("python3 -c 'x = bytearray(1 << 30)'")
    assert "MemoryError" in result.output and result.exit_code == 1
    many = workspace.run(
        "for i in 1 2 3 4; do setsid python3 -c 'x = b\"1\" * (200 << 20); import time; "
        "time.sleep(4); print(\"LIVED\")' & done; wait")
    # Containers: the kernel takes one of them.
    assert many.status == "memory" or (opened.name in ("docker", "podman", "unsafe")
                                       and many.output.split("\n").count("LIVED") < 4)
    assert workspace.run("cat file").output == "t\n"


@every
def test_closing_from_another_thread_ends_a_command_and_all_later_ones(opened):
    workspace, mark = opened(), f"6{os.getpid()}.5"
    timer = threading.Timer(1.0, workspace.close)
    timer.start()
    with pytest.raises(sandbox.SandboxError):
        workspace.run(f"sleep {mark}")
    timer.join()
    assert gone(mark)
    workspace.close()
    with pytest.raises(sandbox.SandboxError, match="closed"):
        workspace.run("true")


@pytest.mark.parametrize("opened", ["docker", "podman", "apptainer", "unsafe"], indirect=True)
def test_what_a_killed_trainer_leaves_is_swept_by_the_next(opened, image, tmp_path):
    program = textwrap.dedent(f"""
        import os, pathlib, signal, sys
        from rime_jax.envs.codebase import sandbox
        from tests.envs.codebase import test_backends
        box = test_backends._box({opened.name!r}, lambda name: {_known(opened.name, image)!r})
        place = pathlib.Path({str(tmp_path)!r}) / "other"
        place.mkdir()
        box.open(test_backends._base({opened.name!r}, place))
        print("ready", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    before = _left(opened.name)
    modules = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE,
                          text=True, env={**os.environ, "PYTHONPATH": modules})
    assert (done.stdout, done.returncode) == ("ready\n", -signal.SIGKILL)
    assert len(_left(opened.name)) == len(before) + 1
    _box(opened.name, image)
    assert _left(opened.name) == before


@every
def test_closing_leaves_nothing(opened):
    before = _left(opened.name)
    for _ in range(3):
        workspace = opened()
        workspace.run("touch x ~/y /tmp/z")
        workspace.close()
    assert _left(opened.name) == before


@closed
def test_an_episode_is_played_and_graded(opened, tmp_path):
    library, (task, *_) = repositories.make(tmp_path, "alpha")
    repositories.environment(tmp_path / "cache" / "environments" / "alpha")
    store = trees.TreeStore(tmp_path / "cache", [task], {"alpha": library})

    class Box:
        def open(self, base):
            # What else the empty image needs.
            mounts = {mount.target: mount for mount in (*opened.base.mounts, *base.mounts)}
            return opened.box.open(dataclasses.replace(base, mounts=tuple(mounts.values())))

    for repair, solved in (("sed -i 's/a - b/a + b/' alpha.py", True), ("echo >> alpha.py", False)):
        env = environment.CodebaseEnvironment(Box(), store)
        try:
            env.reset(streams.Task("0", task.instance_id))
            env.step(f"```bash\n{repair} && python -m pytest -q\n```")
            assert env.step(repositories.SUBMIT).done
            assert env.outcome().solved == solved
        finally:
            env.close()


def _known(name, image):
    return image(name) if name in ("docker", "podman", "apptainer") else ""


def _left(name):
    """What workspaces of a backend are made of, as it is on this machine now."""
    if name in ("docker", "podman"):
        return subprocess.run([name, "ps", "--all", "--quiet"], stdout=subprocess.PIPE,
                              text=True, check=True).stdout.split()
    return sorted(pathlib.Path(tempfile.gettempdir()).glob(f"rime_jax-{name}-*"))
