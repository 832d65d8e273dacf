"""The full text form: game-state blocks, and replies in plain words (Sawyer et al., TMLR 2025)."""

import re

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import env
from rime_jax.envs.alchemy import game as game_lib

# By perceived axis, the words of coordinates -1, 0 and 1; 0 is seen in rotated chemistries only.
FEATURES = (
    ("small", "medium", "large"),
    ("blue", "violet", "purple"),
    ("round", "oval", "pointy"),
)
# By perceived colour index; a pair acts on one axis in opposite directions.
COLOURS = ("green", "red", "yellow", "orange", "pink", "turquoise")

_HEADING = re.compile(r"^[\s*#_>-]*action[\s*_]*:", re.IGNORECASE | re.MULTILINE)
_COLOUR_WORD = "|".join(COLOURS)
_ACTION = re.compile(
    r"\b(?:place|put|drop|use|dip|add|move|throw)\s+(?:the\s+)?stone\s*#?(?P<stone>\d+)"
    r"(?:\s*\([^()\n]*\))?\s+(?:in|into|to|on|with)\s+(?:the\s+)?(?:(?P<cauldron>cauldron)"
    rf"|(?:(?:{_COLOUR_WORD})\s+)?potion\s*#?(?P<potion>\d+)"
    rf"|(?P<colour>{_COLOUR_WORD})\s+potion)\b"
    r"|\b(?P<end>end\s+(?:the\s+|this\s+)?trial)\b",
    re.IGNORECASE,
)
_EMPHASIS = str.maketrans("", "", "*`")
_ERRORS = {
    "empty_reply": "Your reply was empty.",
    "no_action": "Your reply held no action.",
}
_HOW = (
    "End your reply with a line like 'Action: place stone 2 in potion 5', 'Action: place stone 1 "
    "in the cauldron' or 'Action: end the trial'."
)


class FullForm:
    """`env.TextForm` with numbered slots, counted from 1."""

    def opening(self, game: game_lib.TrialGame) -> str:
        return f"A new trial begins.\n{_state(game)}"

    def parse(self, reply: str, game: game_lib.TrialGame) -> env.Action | str:
        """The last action of the last part headed `Action:`, or of the reply if it has none.

        A potion may be named by its colour alone; that is the first one left of it.
        """
        if not reply.strip():
            return "empty_reply"
        told = _HEADING.split(reply.translate(_EMPHASIS))[-1]
        found = list(_ACTION.finditer(told))
        if not found:
            return "no_action"
        last = found[-1]
        if last["end"]:
            return env.Action("end")
        stone = int(last["stone"]) - 1
        if last["cauldron"]:
            return env.Action("bank", stone)
        if last["colour"]:
            slot = env.slot_of_colour(game, COLOURS.index(last["colour"].lower()))
            return env.Action("potion", stone, slot)
        return env.Action("potion", stone, int(last["potion"]) - 1)

    def message(
        self, game: game_lib.TrialGame, event: game_lib.Event, format_error: str | None
    ) -> str:
        if format_error is None:
            report = _report(game, event)
        else:
            report = f"{_ERRORS[format_error]} A step is lost."
        if game.done:
            return report
        # What to do stands last, where small models mind it.
        return "\n".join([report, _state(game), *([_HOW] if format_error else [])])

    def result(self, game: game_lib.TrialGame) -> str:
        return f"The trial is over. Its score is {game.score}, after {game.steps} steps."


def describe_stone(chemistry: chemistry_lib.Chemistry, corner: int) -> str:
    """The three feature words of a stone, such as `small purple round`."""
    seen = chemistry.perceived_stones[corner]
    return " ".join(words[x + 1] for words, x in zip(FEATURES, seen, strict=True))


def _state(game: game_lib.TrialGame) -> str:
    lines = ["Stones:"]
    for slot, corner in enumerate(game.stones, start=1):
        lines.append(f"  {slot}: {None if corner is None else _valued_stone(game, corner)}")
    lines.append("Potions:")
    for slot, potion in enumerate(game.potions, start=1):
        known = None if potion is None else _colour(game, potion)
        lines.append(f"  {slot}: {known}")
    left = game.rules.max_steps - game.steps
    lines.append(f"Score of this trial: {game.score}. Steps left: {left}.")
    return "\n".join(lines)


def _report(game: game_lib.TrialGame, event: game_lib.Event) -> str:
    if event.kind == "end":
        return "You ended the trial."
    if event.kind != "potion" and event.kind != "bank":
        return "Nothing happened: that stone or potion is not there. A step is lost."
    stone = describe_stone(game.chemistry, event.before)
    if event.kind == "bank":
        return f"You placed stone {event.stone + 1} ({stone}) in the cauldron: {event.reward:+d}."
    used = f"You placed stone {event.stone + 1} ({stone}) in potion {event.potion + 1}."
    if event.after == event.before:
        return f"{used} It did not change."
    after = describe_stone(game.chemistry, event.after)
    if game.rules.values == "hidden":
        return f"{used} It is now {after}."
    gain = chemistry_lib.VALUES[event.after] - chemistry_lib.VALUES[event.before]
    return f"{used} It is now {after}; its reward changed by {gain:+d}."


def _valued_stone(game: game_lib.TrialGame, corner: int) -> str:
    stone = describe_stone(game.chemistry, corner)
    if game.rules.values == "hidden":
        return stone
    return f"{stone}, reward {chemistry_lib.VALUES[corner]:+d}"


def _colour(game: game_lib.TrialGame, potion: int) -> str:
    return COLOURS[game.chemistry.perceived_potions[potion]]
