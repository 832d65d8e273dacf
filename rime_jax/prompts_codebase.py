"""The wording of both roles on Codebase Adaptation, and the memory that it asks for."""

import dataclasses
import re

from rime_jax import memory
from rime_jax.envs.codebase import interface, sandbox
from rime_jax.prompts import Message, Transcript

# The sections that a well-formed memory has, in order.
HEADINGS = ("Repository knowledge", "Lessons and pitfalls")
MIN_BULLETS = 2


# What an actor's conversation is made of; a memory that holds it was copied, not written.
_SCAFFOLD = ("<returncode>", "<output>", "```bash", interface.SENTINEL, "[environment]", "[actor]")
# Bullets of the instruction below.
_PLACEHOLDERS = (
    "where things are, how the code is built, how its tests are run (name the repository)",
    "what worked and what cost turns; a bullet that begins with 'Check' or 'Try' for what is still "
    "to be found out",
)


@dataclasses.dataclass(frozen=True)
class CodebaseMemory(memory.HeadedMemory):
    """Two headed sections of at least two bullets. See `memory.MemoryFormat`.

    Further reasons: `scaffold` (it holds pieces of the actor's conversation), `copied` (a bullet of
    the instruction instead of one of its own).
    """

    headings: tuple[str, ...] = tuple(f"## {heading}" for heading in HEADINGS)
    min_bullets: int = MIN_BULLETS

    def parse_items(self, text: str) -> tuple[list[memory.Item], str | None]:
        items, reason = super().parse_items(text)
        if any(piece in text for piece in _SCAFFOLD):
            return items, "scaffold"
        folded = " ".join(text.split()).casefold()
        if any(bullet.casefold() in folded for bullet in _PLACEHOLDERS):
            return items, "copied"
        return items, reason


# What names something of a repository: in backticks, or a path, a module, a test.
_NAME = re.compile(r"`([^`\s]+)`|((?:\w+[./:])+\w+)|(\w*_\w+)")


def false_words(memory: str) -> dict[str, str]:
    """Names of files, modules and tests in a memory, each with another one of them: a bullet in
    which one takes the place of another sends its reader astray."""
    names = list(dict.fromkeys(next(filter(None, found)) for found in _NAME.findall(memory)))
    return dict(zip(names, names[1:] + names[:1], strict=True)) if len(names) > 1 else {}


class CodebasePrompts:
    """For language models that work in a repository. See `prompts.Prompts`."""

    def __init__(self, memory_tokens: int, turns: int = interface.TURNS):
        self._memory_tokens, self._turns = memory_tokens, turns

    def act(self, memory: str, observation: str) -> list[Message]:
        remembered = "You forget everything between tasks but the memory below."
        return [
            {"role": "system", "content": self._system(remembered)},
            {"role": "user", "content": f"Your memory of earlier tasks:\n{_quoted(memory)}\n\n"
                                        f"The issue:\n\n{observation}"},
        ]

    def in_context(self, observation: str) -> list[Message]:
        remembered = "The tasks follow one another in this conversation."
        return [
            {"role": "system", "content": self._system(remembered)},
            {"role": "user", "content": f"The issue:\n\n{observation}"},
        ]

    def next_task(self, last_message: str, outcome: str, observation: str) -> str:
        issue = f"The next issue, in a fresh copy of its repository:\n\n{observation}"
        return "\n\n".join(p for p in (last_message, outcome, issue) if p)

    def write_on(self, last_message: str, outcome: str) -> str:
        return "\n\n".join(p for p in (last_message, outcome, self._instruction()) if p)

    def write_afresh(self, memory: str, transcript: Transcript, outcome: str) -> list[Message]:
        played = "\n\n".join(f"[{speaker}]\n{text}" for speaker, text in transcript)
        text = "\n\n".join((
            f"The memory so far:\n{_quoted(memory)}",
            f"The task that was just worked on:\n{played}", outcome, self._instruction()))
        return [{"role": "user", "content": text}]

    def _system(self, remembered: str) -> str:
        return (
            "You are a programmer who repairs bugs, one after another, in repositories that you "
            f"meet again and again. {remembered}\n\n"
            f"The repository is in {sandbox.WORKDIR}. In each reply, reason briefly and then give "
            "exactly one command, in a block of this form:\n\n```bash\nyour command\n```\n\n"
            "A reply with no block, or with several, runs nothing and costs a turn. Every command "
            f"runs in a fresh shell in {sandbox.WORKDIR}: changes of files stay, `cd` and "
            "variables do not. There is no network. Interactive programs do not work; edit files "
            "with sed, a heredoc or a short Python program. Long output loses its middle.\n\n"
            f"You have {self._turns} turns, and each one that you use lowers your score. Change "
            "the library's files, never its tests: changes to tests and new files do not count. "
            "When the bug is repaired, submit with\n\n"
            f"```bash\necho {interface.SENTINEL}\n```"
        )

    def _instruction(self) -> str:
        return (
            "Run nothing now. Write the memory that you will have in the next tasks, in this "
            "repository and in others. It replaces the old one and is all that you keep: carry "
            "over what will help again, correct what proved wrong, add what this task taught, and "
            "leave out what only this issue needed. Say things in your own words; copy neither "
            f"the old memory nor the conversation. At most {self._memory_tokens} tokens. Write "
            f"only these two parts, each with at least {MIN_BULLETS} bullets:\n"
            f"## {HEADINGS[0]}\n- {_PLACEHOLDERS[0]}\n## {HEADINGS[1]}\n- {_PLACEHOLDERS[1]}"
        )


def _quoted(memory: str) -> str:
    """The memory as data: every line marked, so that it cannot pass for the prompt's own words."""
    if not memory:
        return "(empty)"
    return "\n".join(f"| {line}" for line in memory.splitlines())
