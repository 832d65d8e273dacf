"""Replies, observations and submissions in all the forms that models write."""

import subprocess

import hypothesis
import pytest
from hypothesis import strategies as st

from rime_jax import memory
from rime_jax.envs.codebase import interface, sandbox

S = interface.SENTINEL


def result(output="", code=0, status="done", dropped=0):
    return sandbox.Result(output, code, status, dropped, 0.1)


@pytest.mark.parametrize("reply, command", [
    ("```bash\nls\n```", "ls"),
    ("Thought.\n\n```bash\nls -l\ncat x\n```\nAfter.", "ls -l\ncat x"),
    ("```sh\nls\n```", "ls"),
    ("```shell\nls\n```", "ls"),
    ("```BASH\nls\n```", "ls"),
    ("``` bash \nls\n``` ", "ls"),
    ("```bash\r\nls\r\n```", "ls"),
    ("~~~bash\nls\n~~~", "ls"),
    ("````bash\necho '```'\n````", "echo '```'"),
    ("  ```bash\n  ls\n  ```", "ls"),
    ("- so:\n  ```bash\n  cat <<EOF\n    x\n  EOF\n  ```", "cat <<EOF\n  x\nEOF"),
    ("```bash\r\nls\r\ncat x\r\n```\r\n", "ls\ncat x"),
    ("```bash\nprintf 'x\r\n'\n```", "printf 'x\r\n'"),
    ("```bash title=\"look\" {1}\nls\n```", "ls"),
    ("```sh {.numberLines}\nls\n```", "ls"),
    ("```Shell\nls\n```", "ls"),
    ("~~~sh\necho '```'\n~~~~", "echo '```'"),
    ("```bash\nls\n`````", "ls"),
    ("```bash-session\n$ ls\n```\n```bash\nls\n```", "ls"),
    ("Like this:\n```python\nx = 1\n```\nso:\n```bash\nls\n```", "ls"),
    ("```bash\ncat > a.md <<'EOF'\n    ```x\nEOF\n```", "cat > a.md <<'EOF'\n    ```x\nEOF"),
    ("The fence is `bash`.\n```bash\nls\n```", "ls"),
    ("```bash\nls\n\n```", "ls"),
])
def test_one_block_is_run(reply, command):
    parsed = interface.parse(reply)
    assert (parsed.error, parsed.command) == (None, command)


@pytest.mark.parametrize("reply, error", [
    ("", "no_action"),
    ("I would run `ls`.", "no_action"),
    ("ls -l", "no_action"),
    ("```\nls\n```", "no_action"),
    ("```python\nprint(1)\n```", "no_action"),
    ("```bash\nls\n```\n```bash\ncat x\n```", "several_actions"),
    ("```bash\nls\n```\nor\n```sh\nls\n```", "several_actions"),
    ("```bash\nls", "unclosed_action"),
    ("```bash\nls\n```\n```bash\ncat", "unclosed_action"),
    ("```bash\n```", "empty_action"),
    ("```bash\n  \n```", "empty_action"),
    ("```bash ls\n```", "empty_action"),
    ("```bash\r\n\r\n```", "empty_action"),
    (f"```bash\nsed -i s/a/b/ x\n```\n```bash\necho {S}\n```", "several_actions"),
    (f"```bash\nls\n```\n~~~sh\necho {S}\n~~~", "several_actions"),
    (f"```bash\necho {S}\n```\n```bash\necho {S}\n```", "several_actions"),
    (f"```bash\necho {S}", "unclosed_action"),
    (f"```bash\necho {S}\n~~~", "unclosed_action"),
    (f"```bash\necho {S}\n```bash", "unclosed_action"),
    (f"````bash\necho {S}\n```", "unclosed_action"),
    (f"    ```bash\n    echo {S}\n    ```", "no_action"),
    (f"> ```bash\n> echo {S}\n> ```", "no_action"),
    (f"```bash echo {S}```", "no_action"),
    (f"```\necho {S}\n```", "no_action"),
    (f"```text\necho {S}\n```", "no_action"),
    (f"echo {S}", "no_action"),
    (S, "no_action"),
    ("`" + f"echo {S}`", "no_action"),
])
def test_all_else_runs_nothing_and_says_why(reply, error):
    parsed = interface.parse(reply)
    assert (parsed.command, parsed.error) == (None, error)
    message = interface.format_message(error, 7)
    assert "```bash" in message and f"echo {S}" in message and message.endswith("Turns left: 7")


def test_what_a_model_only_thinks_of_is_not_run():
    thought = f"<think>\n```bash\necho {S}\n```\n</think>\nSo:\n```bash\nls\n```"
    assert interface.parse(memory.strip_thinking(thought, False)[0]).command == "ls"


@hypothesis.given(st.text(alphabet="`~bash \n\rx'\"\ud7ff", max_size=60))
def test_any_reply_has_a_command_or_an_error(reply):
    parsed = interface.parse(reply)
    assert (parsed.command is None) != (parsed.error is None)


@hypothesis.given(st.text(max_size=200).filter(lambda t: "`" not in t and "~" not in t))
def test_a_command_comes_out_as_it_was_written(command):
    parsed = interface.parse(f"Thought.\n```bash\n{command}\n```")
    if command.strip():
        assert parsed.command == command.rstrip("\n")


@hypothesis.given(
    st.integers(0, 30_000), st.integers(0, 10**12), st.sampled_from(["done", "timeout", "memory"]),
    st.integers(1, 40), st.booleans())
def test_observations_never_pass_their_limit(length, dropped, status, left, hint):
    output = "".join(chr(97 + i % 26) for i in range(length))
    hint = interface.submitted(f"echo {S}.", result("x"))[1] if hint else ""
    message = interface.observation(result(output, 0, status, dropped), left, hint)
    assert len(message) <= interface.OBSERVATION_CHARACTERS
    assert ("left out" in message) == (bool(dropped) or output not in message)
    assert hint in message and f"Turns left: {left}" in message


@hypothesis.given(st.integers(0, 20_000), st.integers(200, 9_000))
def test_a_capped_output_keeps_its_head_and_tail_and_counts_the_rest(length, limit):
    output = "".join(chr(97 + i % 26) for i in range(length))
    capped = interface.capped(output, 0, limit)
    assert len(capped) <= limit
    if length <= limit:
        assert capped == output
    else:
        head, _, rest = capped.partition("\n[... ")
        number, _, tail = rest.partition(" characters left out")
        tail = tail.partition(" ...]\n")[2]
        assert output.startswith(head) and output.endswith(tail)
        assert len(head) + len(tail) + int(number) == length and abs(len(head) - len(tail)) <= 1


def run(command, place):
    """With a real bash, as a sandbox would."""
    done = subprocess.run(["bash", "-c", command], cwd=place, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    return result(done.stdout, done.returncode)


@pytest.mark.parametrize("command", [
    f"echo {S}", f"echo '{S}'", f'echo "{S}"', f"echo   {S}  ", f"echo {S};", f"echo -n {S}",
    f"echo -e '{S}\\n'", f"printf {S}", f"printf '%s\\n' {S}", f"printf '\\n{S}\\n'",
    f"cat <<EOF\n{S}\nEOF", f"cat <<'EOF'\n{S}\nEOF", f"cat <<< {S}", f"({{ echo {S}; }})",
    f"ls && echo {S}", f"ls; echo {S}", f"ls\necho {S}", f"ls || true; echo {S}",
    f"false || echo {S}", f"false; echo {S}", f"false | echo {S}", f"ls nowhere; echo {S}",
    f"echo {S} && ls -a", f"echo {S}; ls -a", f"echo {S} | cat", f"echo {S} | tee file",
    f"echo {S} || exit 1", f"echo {S} >&2", f"echo {S}  # the work is done",
    f"python3 -c 'print(\"{S}\")'", f"python3 - <<'EOF'\nprint('{S}')\nEOF",
    f"WORD={S}; echo $WORD", f"if true; then echo {S}; fi", f"bash -c 'echo {S}'",
    f"printf 'echo {S}' > run.sh; bash run.sh", f"echo {S}\r", f"cd / && echo {S}",
    f"echo {S}\n\n\n", f"seq 3; echo; echo {S}; echo",
])
def test_printing_the_sentinel_submits(command, tmp_path):
    assert interface.submitted(command, run(command, tmp_path)) == (True, "")


@pytest.mark.parametrize("command, why", [
    (f"echo {S}.", "line of its own"),
    (f"echo done {S}", "line of its own"),
    (f"echo {S} {S}", "line of its own"),
    (f"echo '\"{S}\"'", "line of its own"),
    (f"echo '{S}\\n'", "line of its own"),
    (f"printf unfinished; echo {S}", "line of its own"),
    (f"ls / | head -2; echo {S}; ls / | head -2", "line of its own"),
    (f"echo {S} > file", "line of its own"),
    (f"echo {S} > /dev/null", "line of its own"),
    (f"# {S}", "line of its own"),
    (f"ls  # {S}", "line of its own"),
    (f"cat > run.sh <<'EOF'\necho {S}\nEOF", "line of its own"),
    (f"true || echo {S}", "line of its own"),
    (f"x=$(echo {S})", "line of its own"),
    (f"false && echo {S}", "failed"),
    (f"echo {S}; false", "failed"),
    (f"echo {S} && exit 3", "failed"),
    (f"echo {S} | grep -v {S}", "failed"),
    (f"grep -r {S} .", "failed"),
    (f"ecko {S}", "failed"),
    (S, "failed"),
    (f"$(echo {S})", "failed"),
    (f"echo '{S}", "failed"),
    (f"echo “{S}”", "line of its own"),
    ("echo COMPLETE_TASK_AND_SUBMIT", "does not hold"),
    ("echo complete_task_and_submit_final_output", "does not hold"),
    ("echo SUBMIT_FINAL_OUTPUT", "does not hold"),
    ("submit", "does not hold"),
    ("python3 -c \"print('COMPLETE_TASK' + '_AND_SUBMIT_FINAL_OUTPUT')\"", "does not hold"),
])
def test_a_submission_that_is_none_is_answered_with_what_to_do(command, why, tmp_path):
    done, hint = interface.submitted(command, run(command, tmp_path))
    assert not done and why in hint and hint.endswith(f"run exactly: echo {S}")


def test_a_submission_whose_command_is_killed_is_none():
    done, hint = interface.submitted(f"echo {S}; sleep 999", result(f"{S}\n", -9, "timeout"))
    assert not done and "failed" in hint


def test_a_file_that_holds_the_sentinel_submits_nothing_and_says_so(tmp_path):
    (tmp_path / "notes").write_text(f"{S}\n")
    done, hint = interface.submitted("cat notes", run("cat notes", tmp_path))
    assert not done and "does not hold" in hint
    assert interface.submitted("ls", run("ls", tmp_path)) == (False, "")


@pytest.mark.parametrize("command, kind", [
    (f"echo {S}", "submit"), ("python -m pytest -q", "test"), ("pytest tests/x.py 2>&1", "test"),
    ("python tests/test_a.py", "test"), ("tox -e py", "test"), ("sed -i 's/a/b/' x.py", "edit"),
    ("cat > x.py <<'EOF'\nx\nEOF", "edit"), ("git checkout x.py", "edit"), ("rm x", "edit"),
    ("cat x.py", "read"), ("sed -n 1,9p x.py", "read"), ("grep -rn foo . 2>/dev/null", "read"),
    ("cd pkg && ls", "read"), ("git diff", "read"), ("git log --oneline", "read"),
    ("sed -i s/a/b/ x.py && pytest", "test"), ("python -c 'print(1)'", "other"), ("pwd", "other"),
])
def test_kinds_of_commands(command, kind):
    assert interface.kind(command) == kind
