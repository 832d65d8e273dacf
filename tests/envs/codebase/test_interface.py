"""Replies, observations and submissions in all the forms that models write."""

import hypothesis
import pytest
from hypothesis import strategies as st

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
    ("  ```bash\n  ls\n  ```", "  ls"),
    ("Like this:\n```python\nx = 1\n```\nso:\n```bash\nls\n```", "ls"),
    ("```bash\ncat > a.md <<'EOF'\n    ```x\nEOF\n```", "cat > a.md <<'EOF'\n    ```x\nEOF"),
    ("The fence is `bash`.\n```bash\nls\n```", "ls"),
    ("```bash\nls\n\n```", "ls"),
])
def test_one_block_is_run(reply, command):
    parsed = interface.parse(reply)
    assert (parsed.error, (parsed.command or "").replace("\r", "")) == (None, command)


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
])
def test_all_else_runs_nothing_and_says_why(reply, error):
    parsed = interface.parse(reply)
    assert (parsed.command, parsed.error) == (None, error)
    message = interface.format_message(error, 7)
    assert "```bash" in message and message.endswith("Turns left: 7")


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


@pytest.mark.parametrize("command, output", [
    (f"echo {S}", f"{S}\n"),
    (f"echo '{S}'", f"{S}\n"),
    (f'echo "{S}"', f"{S}\n"),
    (f"printf {S}", S),
    (f"git diff && echo {S}", f"diff --git a/x b/x\n{S}\n"),
    (f"echo {S} && git diff", f"{S}\ndiff --git a/x b/x\n"),
    (f"pytest -q; echo {S}", f"1 failed\n{S}\n"),
    (f"cat <<EOF\n{S}\nEOF", f"{S}\n"),
    (f"echo   {S}  ", f"  {S} \n\n"),
    (f"echo {S}", f"{S}\r\n"),
])
def test_printing_the_sentinel_submits(command, output):
    assert interface.submitted(command, result(output)) == (True, "")


@pytest.mark.parametrize("command, given, why", [
    (f"echo {S}.", result(f"{S}.\n"), "line of its own"),
    (f"echo done {S}", result(f"done {S}\n"), "line of its own"),
    (f"false && echo {S}", result("", 1), "failed"),
    (f"echo {S}; false", result(f"{S}\n", 1), "failed"),
    (f"echo {S} > f", result(""), "line of its own"),
    (f"grep {S} -r .", result("", 1), "failed"),
    (f"echo {S}; sleep 999", result(f"{S}\n", -9, "timeout"), "failed"),
])
def test_a_submission_that_is_none_is_answered_with_what_to_do(command, given, why):
    done, hint = interface.submitted(command, given)
    assert not done and why in hint and f"echo {S}" in hint


def test_a_file_that_holds_the_sentinel_submits_nothing():
    assert interface.submitted("cat notes", result(f"{S}\n")) == (False, "")


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
