"""The one update that every program computes: model directories, sequences, hyperparameters.

Numpy only, so that it can be imported beside any program.

Dimensions: N sequences, P tokens of the longest prompt, C of the longest completion.
"""

import dataclasses
import json
import pathlib

import numpy as np

PAD = 0


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the loss and the optimiser.

    The loss is the mean over all completion tokens of PPO's clipped objective (`clip_low`,
    `clip_high`) and `kl_coef` times Schulman's k3 estimate of the KL to the reference. AdamW
    without weight decay follows, after clipping to a global norm.
    """

    kl_coef: float = 0.04
    clip_low: float = 0.2
    clip_high: float = 0.28
    lr: float = 1e-4
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    grad_clip: float = 1.0


@dataclasses.dataclass(frozen=True)
class Task:
    """One update.

    Attributes:
      prompts: int32 [N, P], padded on the left with `PAD`.
      completions: int32 [N, C], padded on the right with `PAD`.
      advantages: float32 [N].
      behaviour: float32 [N, C], log-probabilities of the completions' tokens when they were drawn.
      settings: of the loss and the optimiser.
    """

    prompts: np.ndarray
    completions: np.ndarray
    advantages: np.ndarray
    behaviour: np.ndarray
    settings: Settings

    @property
    def real_tokens(self) -> int:
        """Tokens of prompts and completions without padding."""
        return int((self.prompts != PAD).sum() + (self.completions != PAD).sum())

    def save(self, folder: pathlib.Path) -> None:
        """Beside the model directories `policy` and `reference`."""
        arrays = dataclasses.asdict(self)
        settings = arrays.pop("settings")
        np.savez(folder / "task.npz", **arrays)
        (folder / "settings.json").write_text(json.dumps(settings))


def load(folder: pathlib.Path) -> Task:
    with np.load(folder / "task.npz") as arrays:
        return Task(**arrays, settings=Settings(**json.loads(
            (folder / "settings.json").read_text())))


def draw(
    sequences: int, longest: tuple[int, int], vocab: int, mixed: bool, settings: Settings,
    seed: int = 0,
) -> Task:
    """Random sequences; `behaviour` is 0 until a policy has filled it in.

    Args:
      sequences: N.
      longest: P and C.
      vocab: ids are drawn from 1 to vocab - 1.
      mixed: lengths uniform from a fourth of the longest, which occurs as well; otherwise all have
        the longest.
      settings: kept.
      seed: of everything drawn.
    """
    rng = np.random.default_rng(seed)

    def ids(longest: int, left: bool) -> np.ndarray:
        lengths = np.full(sequences, longest)
        if mixed:
            lengths[1:] = rng.integers(longest // 4, longest, sequences - 1, endpoint=True)
        tokens = rng.integers(1, vocab, (sequences, longest), dtype=np.int32)
        place = np.arange(longest)
        kept = lengths[:, None] > (place[::-1] if left else place)[None]
        return np.where(kept, tokens, PAD)

    prompts, completions = ids(longest[0], True), ids(longest[1], False)
    return Task(prompts, completions, rng.standard_normal(sequences).astype(np.float32),
                np.zeros(completions.shape, np.float32), settings)
