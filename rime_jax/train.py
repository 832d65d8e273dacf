"""RIME training: rollouts, credit, update, over and over (method sections 1 to 4).

    python -m rime_jax.train --config=experiments/alchemy/rime.py [--set OPTION=VALUE ...]

One iteration: siblings of each stream play it, ACT and WRITE in turn; rewards become advantages
among siblings at the same position; one update per mini-batch; the new parameters go to the
sampler. A run directory that holds a checkpoint is continued. SIGTERM and Ctrl-C save and exit
with 0.
"""

import argparse
import asyncio
import logging
import pathlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax import evaluate, experiment, parts, streams, training_data
from rime_jax.judge import timed
from rime_jax.learner import batch as batch_lib
from rime_jax.learner import credit as credit_lib
from rime_jax.learner import loss as loss_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update as update_lib
from rime_jax.policy import weights
from rime_jax.rollout import metrics as rollout_metrics
from rime_jax.rollout.collect import collect
from rime_jax.rollout.trajectory import Rollout
from rime_jax.tracking import checkpoint, metrics, progress, run_dir, tensorboard, texts

# Iterations in a row that train nothing and end a run.
_FAILED_ITERATIONS = 3

# Labels that keep the random streams of a run apart.
_ROLLOUTS, _MINIBATCHES = 0, 1


class TrainingError(config_lib.ConfigError):
    """A run that cannot go on; the message says what happened and what to look at."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    experiment.add_arguments(parser)
    arguments = parser.parse_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with experiment.clean_errors():
        config = experiment.read(arguments.config, arguments.set)
        directory = run_dir.RunDir(run_dir.path_of(config, arguments.config))
        finished = train(config, directory)
    if not finished:
        print("Stopped before the last step; the same command continues.")
    print(f"Everything of this run is in {directory.path}; to look at its curves:")
    print(f"  {pathlib.Path(sys.executable).parent / 'tensorboard'} --logdir {directory.path}")


def train(config: ml_collections.ConfigDict, directory: run_dir.RunDir) -> bool:
    """Trains to `config.steps`; False when a signal stopped it before (a checkpoint is saved).

    Raises:
      ConfigError, ModelError, CheckpointError: something does not fit; nothing was changed.
    """
    # All that may not fit is made before anything is written.
    built = parts.build(config)
    learner = _make_learner(built)
    source = streams.StreamSource(built.domain.make_stream("train"), config.seed)
    evaluate.held_out_streams(built)
    # Locked first: a process that is refused must not touch the files of the one that trains.
    with directory.lock(), asyncio.Runner() as runner:
        directory.create_or_resume(config, config.resume)
        trainer = Trainer(built, learner, source, directory)
        try:
            return runner.run(trainer.run())
        finally:
            trainer.close()


def restore_params(built: parts.Parts, run: pathlib.Path) -> tuple[int, dict[str, Any]]:
    """The newest checkpoint of a run directory: (step, parameter sets).

    Raises:
      CheckpointError: there is none, or it is of another model.
    """
    learner = _make_learner(built)
    checkpoints = checkpoint.Checkpoints(run / "checkpoints", 1, read_only=True)
    step = checkpoints.latest()
    if step is None:
        raise checkpoint.CheckpointError(f"{run} has no checkpoint yet; train it first")
    state, _ = checkpoints.restore(step, learner.start(built.initial_sets(learner.params_at)))
    checkpoints.close()
    return step, state.params


class Trainer:
    """One run: its parts, the learner's state, and where it is written."""

    def __init__(
        self, built: parts.Parts, learner: update_lib.Learner, source: streams.StreamSource,
        directory: run_dir.RunDir,
    ):
        # ------------------------------------------------------------------ parameters
        self.config = config = built.config
        self.built, self.learner, self.source, self.directory = built, learner, source, directory
        self.state = self.learner.start(built.initial_sets(learner.params_at))
        self.reference = None
        if config.learner.kl_coef > 0 or config.track.kl_every:
            self.reference = built.initial_params(learner.params_at)

        # ------------------------------------------------------------------ resume
        self.checkpoints = checkpoint.Checkpoints(
            directory.checkpoints, config.track.checkpoint_keep
        )
        self.step = self.checkpoints.latest() or 0
        # Metrics of a finished iteration whose evaluation a signal cut off.
        self.pending: dict[str, Any] | None = None
        self._check_nothing_is_missing()
        if self.step:
            self.state, saved = self.checkpoints.restore(self.step, self.state)
            if not isinstance(saved.get("source"), int):
                raise checkpoint.CheckpointError(
                    f"checkpoint {self.step} in {directory.checkpoints} does not say where its "
                    "streams stopped; move it away to continue from the one before"
                )
            self.source.restore(saved["source"])
            self.pending = saved.get("pending")
            print(f"Continuing {directory.path} after step {self.step}")
        self.saved_source = self.source.state()

        # ------------------------------------------------------------------ tracking
        # Without a checkpoint the initial policy is evaluated again, as step 0.
        first = self.step + 1 if self.step else 0
        metrics.truncate(directory.metrics, first - 1)
        self.log = metrics.MetricsLog(directory.metrics)
        self.board = tensorboard.TensorBoardWriter(directory.tb, first)
        self.board.hparams(dict(config_lib.flatten(config)))
        self.board.layout(texts.LAYOUT)
        self.line = progress.Progress(config.steps)
        self.failed = 0

    async def run(self) -> bool:
        """All iterations that are left, then the final evaluation."""
        task = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        finished = self.directory.eval / "final.md"
        if self.step >= self.config.steps and finished.is_file():
            print(f"This run has finished its {self.config.steps} steps:\n\n{finished.read_text()}")
            return True
        try:
            print("Compiling the sampler …", flush=True)
            await self._publish()
            self.built.sampler.warm_up()
            if self.step == 0:
                await self._start()
            if self.pending is not None:
                self._write_line(self.pending | await self._quick_evaluation())
            while self.step < self.config.steps:
                await self._iteration()
            await self._finish()
            return True
        except asyncio.CancelledError:
            # Raised where the run waits, between updates: state and step belong together.
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
            self._save()
            print(f"\nA signal stopped the run; step {self.step} is saved.")
            return False

    async def _iteration(self) -> None:
        config, built = self.config, self.built
        step = self.step + 1

        # ------------------------------------------------------------------ rollouts
        dealt = self.source.take(config.rollout.streams_per_step)
        judge = timed.TimedJudge(built.judge) if built.judge else None
        context = built.context(config.rollout.temperature, judge=judge)
        began, generated = time.monotonic(), built.sampler.generated_tokens
        rollouts = await collect(
            context, dealt, config.rollout.group_size, (config.seed, _ROLLOUTS, step)
        )
        rollout_s = time.monotonic() - began

        # ------------------------------------------------------------------ credit and batches
        rewards = training_data.rewards_of(rollouts, config.rollout.group_size)
        credit = credit_lib.credit(rewards, config.reward)
        samples = training_data.samples_of(rollouts)
        batches = batch_lib.make_batches(
            samples, credit, config.roles, config.learner,
            np.random.default_rng((config.seed, _MINIBATCHES, step)),
        )
        found = rollout_metrics.rollout_metrics(
            rollouts, built.domain.memory_format.parse_items, built.domain.memory_truth
        )
        found |= training_data.credit_metrics(rollouts, rewards, credit)

        # ------------------------------------------------------------------ update
        began = time.monotonic()
        if config.track.kl_every and step % config.track.kl_every == 0:
            found |= self._kl(batches)
        self.state, learnt = self.learner.step(
            self.state, batches, self.reference if config.learner.kl_coef > 0 else None
        )
        found |= {f"learner/{name}": float(v) for name, v in jax.device_get(learnt).items()}
        update_s = time.monotonic() - began
        self.step, self.saved_source = step, self.source.state()
        await self._publish()

        # ------------------------------------------------------------------ tracking
        trained = sum(int((b.segments > 0).sum()) for own in batches.values() for b in own)
        found |= {
            "time/rollout_s": rollout_s,
            "time/judge_s": judge.seconds if judge else 0.0,
            "time/update_s": update_s,
            "time/generated_tokens_per_s":
                (built.sampler.generated_tokens - generated) / rollout_s,
            "time/trained_tokens_per_s": trained / update_s,
        }
        versions = [s.version for s in samples if s.mask.any()]
        if versions:
            found["learner/oldest_token_lag"] = step - 1 - min(versions)
        await self._track(rollouts, credit, found)
        self._check_progress(rollouts, found)

    async def _track(
        self, rollouts: Sequence[Rollout], credit: credit_lib.Credit, found: dict[str, float]
    ) -> None:
        """Writes what a finished iteration showed; evaluates and saves when it is time."""
        config, step = self.config, self.step
        last = step == config.steps
        if config.track.text_every and (step % config.track.text_every == 0 or step == 1):
            for tag, text in texts.rollout_texts(rollouts).items():
                self.board.text(step, tag, text)
            self.board.histogram(step, "credit/act_advantages", credit.act_advantage)
            self.board.histogram(step, "credit/write_advantages", credit.write_advantage)
        if config.track.samples_every and (step % config.track.samples_every == 0 or step == 1):
            self.directory.write_samples(step, texts.sample_rows(rollouts, credit))
        if config.eval.every and step % config.eval.every == 0 and not last:
            self.pending = metrics.jsonable(found)
            found |= await self._quick_evaluation()
        self._write_line(found)
        if step % config.track.checkpoint_every == 0 or last:
            self._save()
        shown = {
            "performance": "performance/mean", "gain": "eval/gain",
            "facts": "memory/correct_facts", "exploration": "exploration/score",
        }
        self.line.update(step, {k: found[v] for k, v in shown.items() if v in found})

    def _write_line(self, found: dict[str, Any]) -> None:
        self.pending = None
        self.log.write(self.step, found)
        self.board.scalars(self.step, metrics.jsonable(found))

    async def _start(self) -> None:
        """Step 0: what the initial policy scores, beside which every curve is read."""
        if self.config.eval.every:
            print("Evaluating the initial policy …", flush=True)
            found = await self._quick_evaluation()
            self._write_line(found)

    async def _quick_evaluation(self) -> dict[str, float]:
        played = await evaluate.play(
            self.built, self.state.params, self.step, self.config.eval.rollouts_during
        )
        values = evaluate.statistics(played)
        return {
            f"eval/{name}": float(np.nanmean(v)) for name, v in values.items()
            if not np.isnan(v).all()
        }

    async def _finish(self) -> None:
        """The held-out table of initial and trained policy, and the trained model's files."""
        self.line.close()
        for name, params in self.state.params.items():
            weights.save(
                self.directory.path / "model" / name, self.built.policy, params,
                self.built.tokenizer, stop_ids=self.built.chat.stop_ids,
            )
        rollouts = self.config.eval.rollouts
        print(evaluate.announcement(self.config, 2), flush=True)
        policies = {
            "initial": await evaluate.play(
                self.built, self.built.initial_sets(), 0, rollouts),
            f"step {self.step}": await evaluate.play(
                self.built, self.state.params, self.step, rollouts),
        }
        found = evaluate.results(policies, evaluate.floors(self.built), self.config)
        evaluate.save(found, self.directory.eval, "final")
        final = found["policies"][f"step {self.step}"]
        self.board.scalars(self.step, {
            f"eval/{name}": final[name][0] for name in evaluate.COLUMNS
            if not np.isnan(final[name][0])
        })
        print("\n" + evaluate.table(found))

    def _kl(self, batches: Mapping[str, Sequence[batch_lib.Batch]]) -> dict[str, float]:
        """KL to the initial policy (k3) over the first mini-batch of each set."""
        found = {}
        for name, own in batches.items():
            if own:
                d = [self.learner.logprobs(p, own[0])
                     for p in (self.state.params[name], self.reference)]
                each = loss_lib.kl(*d, "k3", self.config.learner.log_ratio_clamp)
                trained = own[0].weights > 0
                found[f"learner/{name}/kl_to_initial"] = float(
                    np.asarray(each)[trained].mean()
                )
        return found

    async def _publish(self) -> None:
        await self.built.sampler.publish(self.state.params, self.step)

    def _save(self) -> None:
        self.checkpoints.save(
            self.step, self.state, {"source": self.saved_source, "pending": self.pending}
        )

    def _check_nothing_is_missing(self) -> None:
        """Refuses to cut metrics back by more than a kill can have cost."""
        lines = metrics.read(self.directory.metrics)
        last = lines[-1]["step"] if lines else 0
        if last > self.step + 2 * self.config.track.checkpoint_every:
            raise config_lib.ConfigError(
                f"{self.directory.metrics} goes to step {last}, but the newest checkpoint is of "
                f"step {self.step}: checkpoints were removed. Bring them back, or give the run a "
                "directory of its own (--set run_dir=...)"
            )

    def _check_progress(self, rollouts: Sequence[Rollout], found: Mapping[str, float]) -> None:
        """Stops a run that no longer trains, before it wastes a night.

        Raises:
          TrainingError: three iterations in a row without a finished task or a finite update.
        """
        lost = not any(rollout.tasks for rollout in rollouts)
        broken = any(v == 1 for k, v in found.items() if k.endswith("/not_finite"))
        self.failed = self.failed + 1 if lost or broken else 0
        if self.failed == _FAILED_ITERATIONS:
            what = (f"all rollouts were lost ({rollouts[0].failure.value} in the first)" if lost
                    else "loss, gradient or update were not finite")
            raise TrainingError(
                f"{_FAILED_ITERATIONS} iterations in a row trained nothing: {what}. The parameters "
                f"are those of step {self.step - _FAILED_ITERATIONS}; look at the log and at "
                f"{self.directory.metrics}, mend the cause (a lower learner.lr, the environment, "
                "the model's files) and start again"
            )

    def close(self) -> None:
        """Waits for the last checkpoint and closes the files."""
        self.checkpoints.close()
        self.log.close()
        self.board.close()
        self.line.close()


def _make_learner(built: parts.Parts) -> update_lib.Learner:
    try:
        mesh = mesh_lib.make_mesh(built.config.learner, jax.devices())
        return update_lib.Learner(built.policy, built.config, mesh)
    except ValueError as error:
        raise config_lib.ConfigError(str(error)) from error


if __name__ == "__main__":
    main()
