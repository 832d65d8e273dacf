"""The wording of both roles, per domain and text form."""

from collections.abc import Sequence
from typing import Protocol

Message = dict[str, str]
Transcript = Sequence[tuple[str, str]]


class Prompts(Protocol):
    """What the actor and the writer are told.

    The writer reads the memory, the task's conversation and its outcome, and never a future task.
    """

    def act(self, memory: str, observation: str) -> list[Message]:
        """Opens a task."""

    def write_on(self, last_message: str, outcome: str) -> str:
        """Goes on in the actor's conversation: asks for the new memory."""

    def write_afresh(self, memory: str, transcript: Transcript, outcome: str) -> list[Message]:
        """Asks for the new memory in a conversation of its own."""

    def in_context(self, observation: str) -> list[Message]:
        """Opens the first task of a conversation that holds them all, without any memory."""

    def next_task(self, last_message: str, outcome: str, observation: str) -> str:
        """Ends a task of such a conversation and opens the next one."""


class CompactPrompts:
    """For the small policy: memory, `;`, observation; and the word `write`."""

    def act(self, memory: str, observation: str) -> list[Message]:
        return [_user(_join(memory, ";", observation))]

    def write_on(self, last_message: str, outcome: str) -> str:
        return _join(last_message, outcome, "write")

    def write_afresh(self, memory: str, transcript: Transcript, outcome: str) -> list[Message]:
        words = (text for _, text in transcript)
        return [_user(_join(memory, ";", *words, outcome, "write"))]

    def in_context(self, observation: str) -> list[Message]:
        return self.act("", observation)

    def next_task(self, last_message: str, outcome: str, observation: str) -> str:
        return _join(last_message, outcome, ";", observation)


class AlchemyPrompts:
    """For language models. The rules are not told: finding them out is the task."""

    def __init__(self, trials: int, memory_tokens: int):
        self._trials = trials
        self._memory_tokens = memory_tokens

    def act(self, memory: str, observation: str) -> list[Message]:
        return [
            self._system("You forget everything between trials except the memory below."),
            _user(_lines(
                f"Your memory of earlier trials:\n{memory or '(empty)'}",
                observation,
                _QUESTION,
            )),
        ]

    def write_on(self, last_message: str, outcome: str) -> str:
        return _lines(last_message, outcome, self._write_instruction())

    def write_afresh(self, memory: str, transcript: Transcript, outcome: str) -> list[Message]:
        played = "\n".join(f"[{speaker}] {text}" for speaker, text in transcript)
        return [_user(_lines(
            f"The memory so far:\n{memory or '(empty)'}",
            f"The trial that was just played:\n{played}",
            outcome,
            self._write_instruction(),
        ))]

    def in_context(self, observation: str) -> list[Message]:
        return [self._system("The trials follow one another in this conversation."),
                _user(_lines(observation, _QUESTION))]

    def next_task(self, last_message: str, outcome: str, observation: str) -> str:
        return _lines(last_message, outcome, observation, _QUESTION)

    def _system(self, remembered: str) -> Message:
        return {"role": "system", "content": (
            "You play a game of stones, potions and a cauldron, over "
            f"{self._trials} trials. A potion may change a stone, and a stone placed in the "
            "cauldron gives you its reward: collect as much as you can. How potions act stays the "
            "same in all trials, but nobody tells you how: explore, and use what you found. "
            f"{remembered}\n"
            # With numbers: small models write `stone I` where it stands in their instructions.
            "Answer in three lines:\nObservation: what you see that matters.\nReasoning: what you "
            "conclude.\nAction: one action and nothing else, written like 'place stone 2 in potion "
            "5', 'place stone 1 in the cauldron' or 'end the trial'."
        )}

    def _write_instruction(self) -> str:
        return (
            "Take no action now. Write the memory that you will have in the next trials. It "
            "replaces the old one: "
            "keep what is still true, correct what proved wrong, add what is new, note what is "
            f"worth trying. At most {self._memory_tokens} tokens. Write only these two parts:\n"
            "## Potion effects\n- one bullet for each potion colour and what it does\n"
            "## Best combination\n- one bullet on the stone with the highest reward and how to "
            "reach it"
        )


_QUESTION = "What do you do? Answer with the three lines Observation, Reasoning and Action."

# The sections that a well-formed memory of the full form has, in order.
ALCHEMY_HEADINGS = ("Potion effects", "Best combination")


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _join(*parts: str) -> str:
    return " ".join(p for p in parts if p)


def _lines(*parts: str) -> str:
    return "\n\n".join(p for p in parts if p)
