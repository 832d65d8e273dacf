"""Who is evaluated; the writer may be another model than the actor.

    initial                      the policy that the configuration starts from
    runs/rime                    the newest checkpoint of a run
    runs/rime/checkpoints/100    another one of its checkpoints
    models/qwen3-4b              a model directory, or the name of a shipped model
    http://host:8000/v1#model    a model of a service that speaks the OpenAI chat protocol
"""

import collections
import contextlib
import copy
import dataclasses
import pathlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import ml_collections

from rime_jax import config as config_lib
from rime_jax import distributed, domains, parts, starting_point
from rime_jax.policy import weights
from rime_jax.rollout.context import Speaker
from rime_jax.rollout.trajectory import Role


@dataclasses.dataclass(frozen=True)
class Model:
    """One model.

    Attributes:
      name: in the results.
      config: of the evaluation, with this model's own options.
      identity: JSON values that tell it from any other.
      version: of the parameters.
      sets: the parts made from `config` → parameter sets, sharded as the learner's.
    """

    name: str
    config: ml_collections.ConfigDict
    identity: Mapping[str, Any]
    version: int
    sets: Callable[[parts.Parts], Mapping[str, Any]]

    @property
    def service(self) -> bool:
        return self.config.sampler.kind == "openai"


@dataclasses.dataclass(frozen=True)
class Player:
    """A model, or one that acts and one that writes.

    Attributes:
      name, identity: as of a `Model`.
      built: the parts, with the sampler of the actor.
      writer: None: the actor's model writes too.
    """

    name: str
    identity: Mapping[str, Any]
    built: parts.Parts
    writer: Speaker | None
    _models: tuple[tuple[Model, parts.Parts], ...]

    async def load(self) -> None:
        """Gives the samplers their parameters."""
        for model, built in self._models:
            await built.sampler.publish(model.sets(built), model.version)

    def spent(self) -> dict[str, float]:
        """What services counted since they were made; empty where there is none."""
        counted: collections.Counter[str] = collections.Counter()
        for model, built in self._models:
            if model.service:
                counted.update(built.sampler.metrics())
        return dict(counted)


@contextlib.asynccontextmanager
async def opened(
    config: ml_collections.ConfigDict, processes: distributed.Processes = distributed.ALONE,
    **who: Any,
) -> AsyncIterator[list[Player]]:
    """What `make` makes of the same arguments; closes the samplers afterwards, whatever happens."""
    made = make(config, processes, **who)
    try:
        yield made
    finally:
        samplers = {id(built.sampler): built.sampler
                    for player in made for _, built in player._models}
        for sampler in samplers.values():
            await sampler.close()


def make(
    config: ml_collections.ConfigDict, processes: distributed.Processes = distributed.ALONE, *,
    run: pathlib.Path | None = None, actor: str | None = None, writer: str | None = None,
) -> list[Player]:
    """The players, who share one set of environments and one actor's sampler.

    Args:
      run: where `config` comes from.
      actor: who acts, in the words of the module's docstring. Without one it is the initial
        policy, and with a run its newest checkpoint beside that.
      writer: who writes; None: the actor's model.

    Raises:
      ConfigError, ModelError, CheckpointError: who cannot play, and the remedy.
    """
    if writer == actor:
        writer = None
    domain = domains.make_evaluated(config)
    if actor is None and (writer is None or run is None):
        models = [_own(config)]
        if run is not None:
            models.append(_checkpoint(config, run, None, run))
    else:
        models = [_model(config, actor or str(run), None if writer is None else "act", run)]
    if writer is None:
        built = parts.build(models[-1].config, processes, domain=domain)
        return [Player(m.name, m.identity, built, None, ((m, built),)) for m in models]
    (acting,), writing = models, _model(config, writer, "write", run)
    _check_pair(acting.config, writing.config)
    built, other = (parts.build(m.config, processes, domain=domain) for m in (acting, writing))
    return [Player(
        f"{acting.name} + writer {writing.name}",
        {"actor": acting.identity, "writer": writing.identity}, built,
        Speaker(other.sampler, other.chat), ((acting, built), (writing, other)))]


def _check_pair(acting: ml_collections.ConfigDict, writing: ml_collections.ConfigDict) -> None:
    if "act_write" not in acting.eval.scaffolds:
        raise config_lib.ConfigError(
            f"eval.scaffolds = {acting.eval.scaffolds} writes no memory, so that --writer has "
            "nothing to do; add act_write")
    if acting.sampler.kind == writing.sampler.kind == "vllm":
        raise config_lib.ConfigError(
            "sampler.kind = 'vllm' gives its servers one model's weights; name a second model as "
            "that of a service (URL#MODEL), or set sampler.kind=native")


def _model(
    config: ml_collections.ConfigDict, who: str, role: Role | None, run: pathlib.Path | None
) -> Model:
    """Args:
      role: what it does, if the other one is another model's.
    """
    if who == "initial":
        return _own(config)
    if who.startswith(("http://", "https://")):
        url, found, name = who.partition("#")
        if not found or not name:
            raise config_lib.ConfigError(f"{who!r} names no model; write {url}#MODEL")
        return _service(_with(config, {
            "sampler.kind": "openai", "sampler.urls": (url,), "sampler.openai_model": name}))
    path = pathlib.Path(who)
    if starting_point.is_run(path):
        return _checkpoint(config, path, role, run)
    return _own(_with(config, {"model.path": who, "model.branch_from": ""}), path.name)


def _own(config: ml_collections.ConfigDict, name: str = "initial") -> Model:
    """What a configuration starts from, or the service that it names."""
    if config.sampler.kind == "openai":
        return _service(config)
    identity = {"model": config.model.to_dict(), "files": _files(config.model.path)}
    if branch := config.model.branch_from:
        name, identity["branch"] = "branch point", starting_point.located(pathlib.Path(branch))[1]
    return Model(name, config, identity, 0, lambda built: starting_point.sets(
        built, starting_point.placement(built)))


def _service(config: ml_collections.ConfigDict) -> Model:
    identity = {"service": list(config.sampler.urls), "model": config.sampler.openai_model}
    return Model(config.sampler.openai_model, config, identity, 0, lambda built: {})


def _checkpoint(
    config: ml_collections.ConfigDict, where: pathlib.Path, role: Role | None,
    own: pathlib.Path | None,
) -> Model:
    """The checkpoint of a run, with the model and the roles of that run.

    Args:
      own: the run that `config` comes from; its checkpoints are named by their step alone.
    """
    run, step = starting_point.located(where)
    theirs = config_lib.load(str(run / "config.json"))
    roles = dict(theirs.roles)
    if role is not None:  # Only its set is loaded.
        roles = dict.fromkeys(("act", "write"), roles[role]) | {"train": (roles[role],)}
    values = {f"roles.{name}": value for name, value in roles.items()}
    if run != own:
        values |= {f"model.{name}": value for name, value in theirs.model.items()}
        if config.sampler.kind == "openai":
            values["sampler.kind"] = "native"
    made = _with(config, values)
    saved = (run / "checkpoints" / str(step)).stat().st_mtime_ns
    identity = {"run": str(run.resolve()), "step": step, "saved": saved, "roles": roles,
                "model": made.model.to_dict()}
    return Model(f"step {step}" if run == own else f"step {step} of {run.name}", made, identity,
                 step, lambda built: starting_point.restored(built, run, step))


def _with(config: ml_collections.ConfigDict, values: Mapping[str, Any]) -> Any:
    """A copy with other values of dotted names."""
    made = copy.deepcopy(config)
    for name, value in values.items():
        section, _, option = name.partition(".")
        made[section][option] = value
    config_lib.validate(made)
    return made


def _files(path: str) -> list[list[Any]]:
    """Weights of a model directory: names, sizes and times of change."""
    found = weights.resolve(path).glob("*.safetensors")
    return sorted([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in found)
