"""The compact text form: a vocabulary of some forty words for the small policy.

A turn is `stone intent colour`, `stone bank` or `end`. The intent is one free word that the game
ignores, a thought of one token: it is what makes reading memory learnable at this size. The game
answers with the colour and the feature that it changed (`green large`, or `green same`) and the
stone as it is now, so that a fact of memory is a pair of words that the conversation shows. A
banked stone is answered with its features and its value; that is the outcome of the task that the
writer sees, since the score is their sum.
"""

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import env
from rime_jax.envs.alchemy import game as game_lib
from rime_jax.envs.alchemy.text_full import COLOURS, FEATURES

FEATURE_WORDS = tuple(FEATURES[axis][side] for axis in range(3) for side in (0, -1))
VALUE_WORDS = {-3: "-3", -1: "-1", 1: "+1", 15: "+15"}
STONE_WORDS = ("0", "1", "2")

# `;` ends the memory in the actor's prompt, `write` asks for a memory, `?` is the intent of a try.
WORDS = (
    *("bank", "end", "?", "same", "invalid", "potions", "best", "try", ";", "write"),
    *STONE_WORDS, *COLOURS, *FEATURE_WORDS, *VALUE_WORDS.values(),
)


class CompactForm:
    """`env.TextForm` in the words of `WORDS`."""

    def opening(self, game: game_lib.TrialGame) -> str:
        words = []
        for slot, corner in enumerate(game.stones):
            words += [STONE_WORDS[slot], *self._stone(game, corner)]
        if game.rules.supply == "random":
            words += ["potions", *self._colours_left(game)]
        return " ".join(words)

    def parse(self, reply: str, game: game_lib.TrialGame) -> env.Action | str:
        words = reply.split()
        if not words:
            return "empty_reply"
        if words == ["end"]:
            return env.Action("end")
        if words[0] in STONE_WORDS:
            stone = STONE_WORDS.index(words[0])
            if words[1:] == ["bank"]:
                return env.Action("bank", stone)
            if len(words) == 3 and words[2] in COLOURS and (words[1] in FEATURE_WORDS
                                                            or words[1] == "?"):
                colour = COLOURS.index(words[2])
                return env.Action("potion", stone, env.slot_of_colour(game, colour))
        return "no_action"

    def message(
        self, game: game_lib.TrialGame, event: game_lib.Event, format_error: str | None
    ) -> str:
        if event.kind == "potion":
            colour = game.chemistry.perceived_potions[game.trial.potions[event.potion]]
            words = [
                COLOURS[colour],
                changed_feature(game.chemistry, event.before, event.after) or "same",
                STONE_WORDS[event.stone],
                *self._stone(game, event.after),
            ]
        elif event.kind == "bank":
            features = stone_words(game.chemistry, event.before)
            words = [*features, VALUE_WORDS[chemistry_lib.VALUES[event.before]]]
        elif event.kind == "end":
            return ""
        else:
            words = ["invalid"]
        return " ".join(words)

    def result(self, game: game_lib.TrialGame) -> str:
        return ""

    def _stone(self, game: game_lib.TrialGame, corner: int) -> tuple[str, ...]:
        words = stone_words(game.chemistry, corner)
        if game.rules.values == "shown":
            words += (VALUE_WORDS[chemistry_lib.VALUES[corner]],)
        return words

    def _colours_left(self, game: game_lib.TrialGame) -> list[str]:
        perceived = game.chemistry.perceived_potions
        return sorted(COLOURS[perceived[p]] for p in game.potions if p is not None)


def stone_words(chemistry: chemistry_lib.Chemistry, corner: int) -> tuple[str, ...]:
    """Size, colour and shape of a stone that is at a latent corner (no rotation)."""
    coordinates = chemistry.perceived_stones[corner]
    return tuple(FEATURES[axis][c + 1] for axis, c in enumerate(coordinates))


def changed_feature(
    chemistry: chemistry_lib.Chemistry, before: int, after: int
) -> str | None:
    """The word of the feature that a potion changed, or None where it changed nothing."""
    old, new = stone_words(chemistry, before), stone_words(chemistry, after)
    return next((b for a, b in zip(old, new, strict=True) if a != b), None)
