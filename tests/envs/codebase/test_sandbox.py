"""Lives of workspaces: side by side, closed at any time, ended with the trainer; other backends."""

import concurrent.futures
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from rime_jax.envs.codebase import apptainer, backends, containers, sandbox, unsafe

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture
def base(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("pristine\n")
    if os.geteuid() == 0:
        for path in (tree, tree / "file"):
            os.chown(path, sandbox.USER, sandbox.USER)
    return sandbox.Base(tree)


def with_mark(mark):
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "cmdline").read_bytes():
                found.append(place.name)
        except OSError:
            pass
    return found


def soon(condition):
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_sixteen_run_side_by_side(box, base):
    def episode(i):
        workspace = box.open(base)
        try:
            workspace.run(f"echo {i} > file")
            return workspace.run("cat file").output
        finally:
            workspace.close()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(episode, range(32))) == [f"{i}\n" for i in range(32)]


def test_closing_from_another_thread_ends_a_command(box, base):
    workspace, mark = box.open(base), f"5{os.getpid()}.25"
    timer = threading.Timer(0.3, workspace.close)
    timer.start()
    with pytest.raises(sandbox.SandboxError):
        workspace.run(f"sleep {mark}")
    timer.join()
    assert soon(lambda: not with_mark(mark))
    workspace.close()
    with pytest.raises(sandbox.SandboxError, match="closed"):
        workspace.run("true")


def test_opening_and_closing_leaves_no_descriptor_process_or_mount(box, base):
    def state():
        children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return (len(os.listdir("/proc/self/fd")), len(children),
                pathlib.Path("/proc/self/mountinfo").read_text().count("\n"))

    box.open(base).close()
    before = state()
    for _ in range(60):
        workspace = box.open(base)
        workspace.close()
    assert state() == before


def test_nothing_survives_a_trainer_that_is_killed(box, base, tmp_path):
    mark = f"6{os.getpid()}.25"
    program = textwrap.dedent(f"""
        import pathlib, threading, time
        from rime_jax.envs.codebase import bubblewrap, sandbox
        box = bubblewrap.Bubblewrap(sandbox.Limits(), ready=3)
        base = sandbox.Base(pathlib.Path({str(base.tree)!r}))
        spaces = [box.open(base) for _ in range(4)]
        for space in spaces:
            command = "echo x > big; setsid sleep {mark} & trap '' TERM; sleep {mark}"
            threading.Thread(target=space.run, args=(command,), daemon=True).start()
        idle = box.open(base)
        time.sleep(0.5)
        print("ready", flush=True)
        time.sleep(60)
    """)
    mounts = pathlib.Path("/proc/self/mountinfo").read_text()
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE,
                          text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}) as trainer:
        assert trainer.stdout.readline() == "ready\n"
        children = pathlib.Path(
            f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text().split()
        assert len(with_mark(mark)) >= 8 and len(children) >= 5
        trainer.send_signal(signal.SIGKILL)
    assert soon(lambda: not with_mark(mark))
    assert soon(lambda: not any(pathlib.Path(f"/proc/{n}/cmdline").exists()
                                and b"warden" in pathlib.Path(f"/proc/{n}/cmdline").read_bytes()
                                for n in children))
    assert pathlib.Path("/proc/self/mountinfo").read_text() == mounts
    assert sorted(p.name for p in base.tree.iterdir()) == ["file"]


def test_an_episode_whose_process_dies_is_lost_and_says_so(box, base):
    workspace = box.open(base)
    workspace._warden._process.kill()
    with pytest.raises(sandbox.SandboxError, match="lost|closed"):
        workspace.run("true")
    workspace.close()


def test_a_tree_that_is_not_there_is_named(box, tmp_path):
    with pytest.raises(sandbox.SandboxError, match="nowhere is no directory"):
        box.open(sandbox.Base(tmp_path / "nowhere"))


def test_trees_of_any_name_can_be_opened(box, tmp_path):
    tree = tmp_path / "a:b,c\\d e'f\"g"
    tree.mkdir()
    (tree / "file").write_text("there\n")
    for path in (tree, tree.parent):
        path.chmod(0o755)
    workspace = box.open(sandbox.Base(tree))
    try:
        assert workspace.run("cat file").output == "there\n"
    finally:
        workspace.close()


def test_without_bubblewrap_auto_lists_remedies_and_is_never_unsafe(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(sandbox.SandboxError, match="(?s)install.*docker.*unsafe"):
        backends.make("auto", sandbox.Limits())
    for name in ("bubblewrap", "docker", "podman", "apptainer"):
        with pytest.raises(sandbox.SandboxError, match="install"):
            backends.make(name, sandbox.Limits())
    with pytest.raises(ValueError, match="chroot"):
        backends.make("chroot", sandbox.Limits())


def test_unsafe_warns_runs_in_a_copy_and_deletes_it(base, caplog):
    box = backends.make("unsafe", sandbox.Limits(timeout_s=10, output_bytes=1000))
    assert "unsafe" in caplog.text
    workspace = box.open(base)
    result = workspace.run("cat file; echo MINE > file; pwd; exit 3")
    assert result.exit_code == 3 and result.output.startswith("pristine\n")
    place = pathlib.Path(result.output.split()[1]).parent
    assert workspace.run("cat; cat file", stdin="in ").output == "in MINE\n"
    mark = f"7{os.getpid()}.25"
    assert workspace.run(f"sleep {mark} & sleep {mark}", timeout_s=0.3).status == "timeout"
    assert soon(lambda: not with_mark(mark))
    assert workspace.run("seq 1000").dropped_bytes > 0
    workspace.close()
    assert not place.exists() and (base.tree / "file").read_text() == "pristine\n"
    with pytest.raises(sandbox.SandboxError, match="closed"):
        workspace.run("true")


def test_unsafe_deletes_what_killed_trainers_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "rime_jax-unsafe-999999999-x"
    own = tmp_path / f"rime_jax-unsafe-{os.getpid()}-x"
    left.mkdir()
    own.mkdir()
    unsafe.Unsafe(sandbox.Limits())
    assert not left.exists() and own.exists()


def test_unsafe_refuses_bases_that_it_cannot_show(base, tmp_path):
    mounted = sandbox.Base(base.tree, (sandbox.Mount(tmp_path, "/opt/env"),))
    with pytest.raises(sandbox.SandboxError, match="/opt/env"):
        unsafe.Unsafe(sandbox.Limits()).open(mounted)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Stand-ins for container programs: note their arguments, run what comes after `bash -c`."""
    log = tmp_path / "log"
    for name in ("docker", "apptainer"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(textwrap.dedent(f"""\
            #!{sys.executable}
            import json, os, sys
            with open({str(log)!r}, "a") as file:
                file.write(json.dumps(sys.argv[1:]) + "\\n")
            verb = sys.argv[1]
            if verb == "ps":
                print("other1\\ndead2")
            elif verb == "inspect":
                other = sys.argv[-1] == "other1"
                print("elsewhere:1:1" if other else os.uname().nodename + ":999999999:5")
            elif verb == "run":
                print("c0ffee")
            elif "FAIL" in sys.argv[-1]:
                print("FATAL: no image"); sys.exit(125)
            elif "env" in sys.argv:
                command = sys.argv[sys.argv.index("env"):]
                if "cp -r" in command[-1]:
                    command[-1] = "true"
                os.execvp("env", command)
            """))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def calls():
        return [json.loads(line) for line in log.read_text().splitlines()]

    return calls


def test_containers_are_closed_off_labelled_and_removed(engine, base, tmp_path):
    limits = sandbox.Limits(processes=7, memory_bytes=123 << 20, timeout_s=10)
    box = containers.Containers("docker", limits, "image:1")
    workspace = box.open(sandbox.Base(
        base.tree, (sandbox.Mount(tmp_path, "/opt/env"),), {"X": "y z"}))
    assert workspace.run("echo out; cat; exit 4", stdin="in").output == "out\nin"
    with pytest.raises(sandbox.SandboxError, match="no image"):
        workspace.run("FAIL")
    workspace.close()
    workspace.close()
    calls = engine()
    verbs = [call[0] for call in calls]
    assert verbs == ["ps", "inspect", "inspect", "rm", "run", *["exec"] * 6, "rm"]
    assert calls[3][-1] == "dead2" and calls[-1] == ["rm", "--force", "--volumes", "c0ffee"]
    start = " ".join(calls[4])
    for part in ("--network none", "--read-only", "--cap-drop ALL", "no-new-privileges",
                 "--pids-limit 39", f"--memory {123 << 20} --memory-swap {123 << 20}",
                 f"--label rime_jax.owner={os.uname().nodename}:{os.getpid()}:",
                 f"source={base.tree.resolve()},target=/opt/tree,readonly",
                 f"source={tmp_path.resolve()},target=/opt/env,readonly"):
        assert part in start
    assert "image:1" in calls[4] and "X=y z" in calls[7]
    assert all("kill -9 -1" in call[-1] for call in calls[6:11:2])


def test_labels_tell_whether_their_process_is_alive():
    assert containers.alive(containers.owner())
    node, pid, began = containers.owner().split(":")
    assert not containers.alive(f"{node}:{pid}:{int(began) + 1}")
    assert not containers.alive(f"{node}:999999999:1")
    assert containers.alive("another-machine:999999999:1")


def test_apptainer_shuts_the_network_and_binds_a_copy(engine, base, tmp_path):
    box = apptainer.Apptainer(sandbox.Limits(timeout_s=10))
    workspace = box.open(sandbox.Base(base.tree, (sandbox.Mount(tmp_path, "/opt/env"),),
                                      {"X": "y z"}, "image.sif"))
    assert workspace.run("echo out; cat", stdin="in").output == "out\nin"
    with pytest.raises(sandbox.SandboxError, match="no image"):
        workspace.run("FAIL")
    (call, _) = engine()
    text = " ".join(call)
    for part in ("exec --containall --net --network none --cleanenv --no-home --no-privs",
                 f"type=bind,source={tmp_path.resolve()},target=/opt/env,readonly image.sif env -i",
                 "--security uid:" if os.geteuid() == 0 else "--userns", "X=y z bash -c"):
        assert part in text
    copy = pathlib.Path(text.split(f",target={sandbox.WORKDIR}")[0].split("source=")[-1])
    assert (copy / "file").read_text() == "pristine\n"
    workspace.close()
    assert not copy.parent.exists()
