"""What the actor may write and what it reads: one bash block, capped observations, submit.

The interface of RIME's training on Codebase Adaptation: a reply holds exactly one fenced bash
block; none or several run nothing and the turn is spent all the same.
"""

import dataclasses
import re

from rime_jax.envs.codebase import sandbox

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
TURNS = 40
OBSERVATION_CHARACTERS = 8_000

# A fence opens and closes at the start of a line; the closing one is at least as long.
_FENCE = re.compile(r"^([ \t]{0,3})(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.MULTILINE)
# Its language is the first word behind an opening fence; attributes may follow.
_LANGUAGE = re.compile(r"[\w-]*")
_SHELLS = {"bash", "sh", "shell"}


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a reply asks for.

    Attributes:
      command: of its only bash block; None if nothing may run.
      error: why not: `no_action`, `several_actions`, `unclosed_action`, `empty_action`.
    """

    command: str | None
    error: str | None = None


_EXPLANATIONS = {
    "no_action": "Your reply holds no bash block, so nothing was run.",
    "several_actions": "Your reply holds several bash blocks, so none of them was run. Join what "
                       "belongs together with && or put one command in each reply.",
    "unclosed_action": "The bash block of your reply is not closed, so nothing was run.",
    "empty_action": "The bash block of your reply is empty, so nothing was run.",
}
_FORM = ("Give your reasoning and then exactly one block:\n\n```bash\nyour command\n```\n\n"
         f"To submit, the command is: echo {SENTINEL}")


def parse(reply: str) -> Reply:
    """The command of a reply (thinking already removed)."""
    blocks, closed = _bash_blocks(reply)
    if not closed:
        return Reply(None, "unclosed_action")
    if not blocks:
        return Reply(None, "no_action")
    if len(blocks) > 1:
        return Reply(None, "several_actions")
    if not blocks[0].strip():
        return Reply(None, "empty_action")
    return Reply(blocks[0])


def _bash_blocks(reply: str) -> tuple[list[str], bool]:
    """Contents of the bash blocks, and whether the last one is closed."""
    blocks, opened, is_shell = [], None, False
    for match in _FENCE.finditer(reply):
        fence, label = match[2], match[3].strip().lower()
        if opened is None:
            opened, is_shell = match, _LANGUAGE.match(label)[0] in _SHELLS
        elif fence.startswith(opened[2]) and not label:
            if is_shell:
                blocks.append(_content(reply[opened.end() + 1:match.start()], opened))
            opened = None
    return blocks, opened is None or not is_shell


def _content(block: str, opening_fence: re.Match) -> str:
    """A block without what its lines have because the reply or the fence is written so."""
    if opening_fence[3].endswith("\r"):
        block = block.replace("\r\n", "\n")
    if opening_fence[1]:
        # A here-document would not end at an indented word.
        block = re.sub(rf"^[ \t]{{1,{len(opening_fence[1])}}}", "", block, flags=re.MULTILINE)
    return block.rstrip("\n")


def opening(statement: str, turns: int) -> str:
    """What the actor reads first."""
    return (f"{statement.strip()}\n\nThe repository is in {sandbox.WORKDIR}. "
            f"You have {turns} turns.")


def format_message(error: str, turns_left: int) -> str:
    """The answer to a reply that ran nothing."""
    return f"{_EXPLANATIONS[error]} {_FORM}\n\n{_turns(turns_left)}"


def observation(result: sandbox.Result, turns_left: int, hint: str = "") -> str:
    """The answer to a command: at most `OBSERVATION_CHARACTERS`."""
    before = f"<returncode>{result.exit_code}</returncode>\n"
    if result.status != "done":
        before += f"<killed>{_KILLED[result.status]}</killed>\n"
    before += "<output>\n"
    after = "\n".join(["\n</output>", *([hint] if hint else []), _turns(turns_left)])
    room = OBSERVATION_CHARACTERS - len(before) - len(after)
    return before + capped(result.output, result.dropped_bytes, room) + after


_KILLED = {
    "timeout": "The command ran too long and was killed.",
    "memory": "The command used too much memory and was killed.",
    "output": "The command printed without end and was killed.",
}


def capped(output: str, dropped: int = 0, limit: int = OBSERVATION_CHARACTERS) -> str:
    """The output, or its head and tail with a note of what is missing between them.

    Args:
      output: what the sandbox kept; if it dropped something, then from the middle.
      dropped: bytes that it dropped.
      limit: characters of the result, the note included.
    """
    if len(output) <= limit and not dropped:
        return output
    note = "\n[... {} characters left out; print less, with head, tail, grep or sed -n ...]\n"
    room = max(0, limit - len(note) - 12)
    # Where bytes were dropped, the middle of what was kept is the place.
    head = output[: min(room // 2, (len(output) + 1) // 2)]
    tail = output[max(len(head), len(output) - (room - room // 2)):]
    return head + note.format(len(output) - len(head) - len(tail) + dropped) + tail


def _turns(left: int) -> str:
    if left == 1:
        return f"Turns left: 1. If you do not submit now (echo {SENTINEL}), the task has failed."
    return f"Turns left: {left}"


def submitted(command: str, result: sandbox.Result) -> tuple[bool, str]:
    """Whether a command submits, and otherwise what to say to a model that seems to want to.

    It does if the model wrote the sentinel and it was printed on a line of its own, first or last,
    by a command that succeeded: alone, behind `&&`, quoted. A file that holds the sentinel submits
    nothing, for it may just be read.
    """
    lines = [line.strip() for line in result.output.strip().splitlines()]
    printed = bool(lines) and SENTINEL in (lines[0], lines[-1])
    written = SENTINEL in command
    if written and printed and result.exit_code == 0 and result.status == "done":
        return True, ""
    if not (written or printed or _ALMOST.search(command)):
        return False, ""
    if not written:
        why = f"the command does not hold {SENTINEL}"
    elif printed or result.exit_code:
        why = "the command failed"
    else:
        why = f"{SENTINEL} was not printed on a line of its own, first or last"
    return False, (f"Nothing was submitted: {why}. When your work is done, run exactly: "
                   f"echo {SENTINEL}")


# The sentinel in another spelling, or what other interfaces call it.
_ALMOST = re.compile(r"complete[ _-]*task[ _-]*and[ _-]*submit|submit[ _-]*final[ _-]*output"
                     r"|^\s*submit\s*$", re.IGNORECASE)
_KINDS = (
    ("submit", re.compile(SENTINEL)),
    ("test", re.compile(r"\b(pytest|py\.test|unittest|tox|nox|doctest)\b|\btest[\w/]*\.py\b")),
    ("edit", re.compile(r"\bsed\s+(-\S+\s+)*-i|\bsed\s+-\w*i|>>?\s*(?!/dev/null|&)\S|\btee\b|"
                        r"\bgit (apply|checkout|restore|stash|revert|reset)\b|\bpatch\b|"
                        r"\b(mv|rm|cp|touch|mkdir)\b|\bwrite_text\b|\.write\(|\bperl\s+-\w*i")),
    ("read", re.compile(r"^\s*(cd\s+\S+\s*(&&|;)\s*)?(cat|sed|head|tail|less|more|nl|grep|rg|egrep|"
                        r"find|ls|tree|wc|git\s+(log|show|diff|status|grep|blame)|awk)\b")),
)


def kind(command: str) -> str:
    """`submit`, `test`, `edit`, `read` or `other`: what a command mainly does, by its words."""
    without_stderr = re.sub(r"2>\s*(&1|/dev/null)", "", command)
    return next((name for name, form in _KINDS if form.search(without_stderr)), "other")
