"""RIME training: rollouts, credit, update, over and over (method sections 1 to 4).

    python -m rime_jax.train --config=experiments/alchemy/rime.py [--set OPTION=VALUE ...]

One iteration: siblings of each stream play it, ACT and WRITE in turn; rewards become advantages
among siblings at the same position; one update per mini-batch; the new parameters go to the
sampler. A run directory that holds a checkpoint is continued. SIGTERM and Ctrl-C save and exit
with 75, which asks for the same command again (launch/until_done.sh gives it). Several processes
train together with --coordinator (rime_jax/distributed.py).
"""

import argparse
import asyncio
import contextlib
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
from rime_jax import (
    config_rules,
    distributed,
    errors,
    experiment,
    guards,
    judges,
    measured,
    mfu,
    parts,
    samplers,
    starting_point,
    streams,
    training_data,
)
from rime_jax.evaluation import journal, protocols, tables
from rime_jax.judge import timed
from rime_jax.learner import batch as batch_lib
from rime_jax.learner import credit as credit_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update as update_lib
from rime_jax.policy import attention, weights
from rime_jax.rollout.collect import collect
from rime_jax.rollout.trajectory import Rollout
from rime_jax.tracking import bad_batches, checkpoint, metrics, recorder, run_dir

_log = logging.getLogger(__name__)

# Labels that keep the random streams of a run apart.
_ROLLOUTS, _MINIBATCHES = 0, 1

_Batches = Mapping[str, Sequence[batch_lib.Batch]]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    experiment.add_arguments(parser)
    distributed.add_arguments(parser)
    arguments = parser.parse_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with experiment.clean_errors():
        config = experiment.read(arguments.config, arguments.set)
        directory = run_dir.RunDir(run_dir.path_of(config, arguments.config))
        for line in config_rules.notes(config):
            print(f"note: {line}")
        with distributed.session(arguments) as processes:
            finished = train(config, directory, processes)
    if not finished:
        print("Stopped before the last step; the same command continues.")
    if processes.first:
        print(f"Everything of this run is in {directory.path}; to look at its curves:")
        print(f"  {pathlib.Path(sys.executable).parent / 'tensorboard'} --logdir {directory.path}")
    if not finished:
        sys.exit(errors.STOPPED)


def train(
    config: ml_collections.ConfigDict, directory: run_dir.RunDir,
    processes: distributed.Processes = distributed.ALONE,
) -> bool:
    """Trains to `config.steps`; False when a signal stopped it before (a checkpoint is saved).

    Raises:
      ConfigError, ModelError, CheckpointError: something does not fit; nothing was changed.
    """
    # All that may not fit is made before anything is written.
    distributed.check_same(processes, config)
    samplers.check_trains(config)
    judges.check_serves(config)
    built = parts.build(config, processes, directory.path)
    learner = make_learner(built)
    starting_point.check_branch(built, learner.params_at)
    source = streams.StreamSource(built.domain.make_stream("train"), config.seed)
    evaluated = protocols.prepared(built)
    # Locked first: a process that is refused must not touch the files of the one that trains.
    held = directory.lock() if processes.first else contextlib.nullcontext()
    with held, asyncio.Runner() as runner:
        try:
            if processes.first:
                directory.create_or_resume(config, config.resume)
            distributed.check_shared(processes, directory.config)
            trainer = Trainer(built, evaluated, learner, source, directory, processes)
            with contextlib.closing(trainer):
                return runner.run(trainer.run())
        finally:
            runner.run(built.sampler.close())


def make_learner(built: parts.Parts) -> update_lib.Learner:
    """The learner over all devices of all processes.

    Raises:
      ConfigError: the configuration does not fit them.
    """
    try:
        attention.check_platform(built.config.model.attention, jax.default_backend())
        mesh = mesh_lib.make_mesh(built.config.learner, jax.devices())
        return update_lib.Learner(built.policy, built.config, mesh)
    except ValueError as error:
        raise config_lib.ConfigError(str(error)) from error


class Trainer:
    """One run: its parts, the learner's state, and where it is written."""

    def __init__(
        self, built: parts.Parts, evaluated: parts.Parts, learner: update_lib.Learner,
        source: streams.StreamSource, directory: run_dir.RunDir,
        processes: distributed.Processes,
    ):
        self.config, self.evaluated = (config := built.config), evaluated
        self.built, self.learner, self.source, self.directory = built, learner, source, directory
        self.processes, self.stop = processes, distributed.Stop(processes)

        # ------------------------------------------------------------------ resume
        self.checkpoints = checkpoint.Checkpoints(
            directory.checkpoints, config.track.checkpoint_keep
        )
        self.step = processes.gather(self.checkpoints.latest() or 0)[0]
        # Metrics of a finished iteration whose evaluation a signal cut off.
        self.pending: dict[str, Any] | None = None
        if processes.first:
            guards.check_nothing_is_missing(
                directory, self.step, config.track.checkpoint_every)

        # ------------------------------------------------------------------ parameters
        start = starting_point.sets if self.step == 0 else parts.Parts.initial_sets
        self.state = learner.start(start(built, learner.params_at))
        self.reference = None
        if config.learner.kl_coef > 0 or config.track.kl_every:
            self.reference = learner.reference(built.initial_params(learner.params_at))
        if self.step:
            self._restore()
        self.saved_source = self.source.state()

        # ------------------------------------------------------------------ tracking
        self.recorder = (recorder.Recorder(directory, config, self.step) if processes.first
                         else None)
        self.progress = guards.Progress(directory)

    def _restore(self) -> None:
        wanted = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state)
        del self.state  # there need not be room for both
        self.state, saved = self.checkpoints.restore(self.step, wanted)
        if not isinstance(saved.get("source"), int):
            raise checkpoint.CheckpointError(
                f"checkpoint {self.step} in {self.directory.checkpoints} does not say where its "
                "streams stopped; move it away to continue from the one before"
            )
        self.source.restore(saved["source"])
        self.pending = saved.get("pending")
        self._say(f"Continuing {self.directory.path} after step {self.step}")

    async def run(self) -> bool:
        """All iterations that are left, then the final evaluation."""
        self.stop.heed_signals()
        finished = self.directory.eval / "final.md"
        if self.step >= self.config.steps and self.processes.gather(finished.is_file())[0]:
            self._say(f"This run has finished: step {self.step} of {self.config.steps}\n\n"
                      f"{finished.read_text()}")
            return True
        try:
            self._say("Preparing the sampler …")
            # Servers may be long in coming; with several processes nobody may leave alone.
            first = self._publish()
            await (first if self.processes.count > 1 else self.stop.run(first))
            self.built.sampler.warm_up()
            if self.step == 0:
                await self._start()
            if self.pending is not None:
                self._write_line(self.pending | await self._quick_evaluation())
            while self.step < self.config.steps:
                await self._iteration()
            await self._finish()
            return True
        except distributed.Stopped:
            # Raised where the run waits, between updates: state and step belong together.
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
            self._save()
            self._say(f"\nA signal stopped the run; step {self.step} is saved.")
            return False

    async def _iteration(self) -> None:
        config, built, step = self.config, self.built, self.step + 1

        # ------------------------------------------------------------------ rollouts
        judge = timed.TimedJudge(built.judge) if built.judge else None
        began, generated = time.monotonic(), built.sampler.generated_tokens
        rollouts = await self._rollouts(step, judge)
        seconds = {"time/rollout_s": time.monotonic() - began}
        sums = {"time/judge_s": judge.seconds if judge else 0.0,
                "generated": built.sampler.generated_tokens - generated,
                **(judge.metrics() if judge else {})}

        # ------------------------------------------------------------------ credit and batches
        # Of all processes: a baseline may be fitted to other groups than one's own.
        rewards = training_data.whole(self.processes.gather(
            training_data.rewards_of(rollouts, config.rollout.group_size)))
        batches = batch_lib.make_batches(
            training_data.samples_of(rollouts), credit_lib.credit(rewards, config.reward),
            config.roles, config.learner, (config.seed, _MINIBATCHES, step),
            self.learner.local_rows, self._largest,
        )

        # ------------------------------------------------------------------ update
        began = time.monotonic()
        learnt: dict[str, float] = {}
        if config.track.kl_every and step % config.track.kl_every == 0:
            learnt |= self._kl(batches)
        updated, ratios = self._update(step, batches)
        learnt |= updated
        seconds["time/update_s"] = time.monotonic() - began
        self.step, self.saved_source = step, self.source.state()
        began = time.monotonic()
        await self._publish()
        seconds["time/publish_s"] = time.monotonic() - began

        # ------------------------------------------------------------------ tracking
        sums["trained"] = sum(int((b.segments > 0).sum()) for own in batches.values() for b in own)
        sums["flops"] = mfu.update_flops(built.policy.config, batches, config.learner)
        await self._track(rollouts, seconds, sums, learnt, ratios)

    async def _rollouts(self, step: int, judge: timed.TimedJudge | None) -> list[Rollout]:
        """Of this process's streams. All deal the same ones, and each plays its own."""
        config = self.config
        dealt = self.source.take(config.rollout.streams_per_step)
        own = self.processes.own(len(dealt))
        context = self.built.context(config.rollout.temperature, judge=judge)
        return await self.stop.run(collect(
            context, [dealt[i] for i in own], config.rollout.group_size,
            (config.seed, _ROLLOUTS, step), own,
        ))

    def _largest(self, sizes: np.ndarray) -> np.ndarray:
        return np.max(self.processes.gather(sizes), axis=0)

    def _update(
        self, step: int, batches: _Batches
    ) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """One update per mini-batch; what was not finite is kept to be looked at.

        Returns:
          Metrics, and for each parameter set its tokens in the bins of `loss.RATIO_EDGES`.
        """
        self.state, learnt = self.learner.step(
            self.state, batches, self.reference if self.config.learner.kl_coef > 0 else None
        )
        learnt = jax.device_get(learnt)
        ratios = {name: learnt.pop(f"{name}/ratios") for name in batches
                  if f"{name}/ratios" in learnt}
        found = {f"learner/{name}": float(v) for name, v in learnt.items()}
        for name, own in batches.items():
            if found.get(f"learner/{name}/not_finite", 0) > 0:
                folder = bad_batches.save(self.directory.bad_batches, step, name, own,
                                          self.processes.index)
                _log.warning("step %d: an update of %s was not finite and was left out; its batch "
                             "is in %s", step, name, folder)
        return found, ratios

    async def _track(
        self, rollouts: list[Rollout], seconds: dict[str, float], sums: dict[str, float],
        learnt: dict[str, float], ratios: dict[str, np.ndarray],
    ) -> None:
        """Writes what a finished iteration showed; evaluates and saves when it is time."""
        config, step = self.config, self.step
        last = step == config.steps
        if self.processes.count > 1:
            shown = any(recorder.due(every, step)
                        for every in (config.track.text_every, config.track.samples_every))
            rollouts = training_data.light(rollouts, shown)
        shares = self.processes.collect(
            measured.Share(rollouts, seconds, self.built.sampler.metrics(), sums))
        found: dict[str, Any] = {}
        if shares is not None:
            all_of_it = measured.iteration(self.built, step, shares)
            found = all_of_it.metrics | learnt
            self.recorder.rollouts(step, all_of_it.rollouts, all_of_it.credit, ratios)
        if config.eval.every and step % config.eval.every == 0 and not last:
            self.pending = metrics.jsonable(found)
            found |= await self._quick_evaluation()
        self._write_line(found)
        if step % config.track.checkpoint_every == 0 or last:
            self._save()
        if shares is not None:
            self.recorder.progress(step, found)
            self.progress.check(step, all_of_it.rollouts, found)

    def _write_line(self, found: dict[str, Any]) -> None:
        self.pending = None
        if self.recorder is not None:
            self.recorder.scalars(self.step, found)

    async def _start(self) -> None:
        """Step 0: what the initial policy scores, beside which every curve is read."""
        if self.config.eval.every:
            self._say("Evaluating the initial policy …")
            found = await self._quick_evaluation()
            self._write_line(found)

    async def _quick_evaluation(self) -> dict[str, float]:
        """What the policy scores now, in the first of the scaffolds."""
        played = await protocols.play(
            self.evaluated, self.config.eval.rollouts_during, self.stop)
        return {f"eval/{name}": value for name, value in protocols.curves(played).items()}

    async def _finish(self) -> None:
        """The held-out table of initial and trained policy, and the trained model's files."""
        config, step = self.config, self.step
        if self.recorder is not None:
            self.recorder.end_line()
        for name, params in self.state.params.items():
            weights.save(
                self.directory.path / "model" / name, self.built.policy, params,
                self.built.tokenizer,
            )
        first, trained = "branch point" if config.model.branch_from else "initial", f"step {step}"
        self._say(tables.announcement(config, [first, trained]))
        beginning = starting_point.sets(self.built, self.learner.params_at)
        played = await self._play(first, beginning, 0)
        played |= await self._play(trained, self.state.params, step)
        if self.recorder is None:
            return
        found = protocols.results(played, self.evaluated)
        text = tables.save(found, self.directory.eval, "final")
        last = played[protocols.row_name(trained, config.eval.scaffolds[0])]
        self.recorder.evaluation(step, {
            f"eval/{name}": value for name, value in protocols.curves(last).items()})
        self._say("\n" + text)

    async def _play(
        self, name: str, params: Mapping[str, Any], version: int
    ) -> dict[str, protocols.Played]:
        """The rows of one policy in the final table."""
        config, place = self.config, self.directory.eval / "played"
        await self.built.sampler.publish(params, version)
        who = {"final": name, **run_dir.identity(config)}
        with journal.opened(place, config, who, self.processes) as kept:
            return {
                protocols.row_name(name, scaffold): await protocols.play(
                    self.evaluated, config.eval.rollouts, self.stop, scaffold=scaffold,
                    journal=kept)
                for scaffold in config.eval.scaffolds}

    def _kl(self, batches: _Batches) -> dict[str, float]:
        """KL to the initial policy (k3) over the first mini-batch of each set."""
        found = {}
        for name, own in batches.items():
            if own:
                found[f"learner/{name}/kl_to_initial"] = float(
                    self.learner.kl(self.state.params[name], self.reference, own[0]))
        return found

    async def _publish(self) -> None:
        await self.built.sampler.publish(self.state.params, self.step)

    def _save(self) -> None:
        self.checkpoints.save(
            self.step, self.state, {"source": self.saved_source, "pending": self.pending}
        )

    def _say(self, text: str) -> None:
        if self.processes.first:
            print(text, flush=True)

    def close(self) -> None:
        """Waits for the last checkpoint and closes the files."""
        self.checkpoints.close()
        if self.recorder is not None:
            self.recorder.close()


if __name__ == "__main__":
    main()
