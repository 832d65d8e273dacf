"""How options must agree with each other."""

import re

import ml_collections

from rime_jax.options import ConfigError


def check(c: ml_collections.ConfigDict) -> None:
    """Refuses a config whose fields are each allowed and yet do not go together.

    Raises:
      ConfigError: names the fields and the remedy.
    """
    def need(condition: bool, message: str) -> None:
        if not condition:
            raise ConfigError(message)

    directories = {"name": c.name, "roles.act": c.roles.act, "roles.write": c.roles.write}
    for name, value in directories.items():
        need(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", value) is not None,
             f"{name} = {value!r} names a directory; use letters, digits, '_', '-' and '.', not "
             "first a '.'")
    need(c.env.domain in ("alchemy", "codebase")
         or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", c.env.domain) is not None,
         f"env.domain = {c.env.domain!r} is neither alchemy nor codebase nor MODULE:FUNCTION")
    need(c.reward.credit == "rime" or c.reward.writer == "improvement",
         f"reward.writer = {c.reward.writer!r} means nothing with reward.credit = "
         f"{c.reward.credit!r}, which pays the writer in its own way; leave reward.writer at "
         "'improvement'")
    need(c.reward.history_baseline == "window"
         or (c.reward.credit, c.reward.writer) == ("rime", "improvement"),
         f"reward.history_baseline = {c.reward.history_baseline!r} means nothing unless the "
         "improvement pays the writer (reward.credit = 'rime', reward.writer = 'improvement'); "
         "leave it at 'window'")
    need(c.reward.history_baseline != "fitted" or c.rollout.streams_per_step >= 2,
         "reward.history_baseline = 'fitted' takes a stream's coefficients from the other streams "
         "of the iteration; set rollout.streams_per_step to 2 or more")
    need(c.judge.kind != "none" or c.reward.exploration == 0,
         "judge.kind = 'none' gives no exploration scores; set reward.exploration = 0 as well")
    need(c.judge.kind != "server" or c.judge.model,
         "judge.kind = 'server' needs judge.model: the model's name at the server")
    for url in c.judge.urls:
        need(re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url) is not None,
             f"judge.urls holds {url!r}; write the base of the chat protocol, such as "
             "http://127.0.0.1:8100/v1")
    sets = {c.roles.act, c.roles.write}
    for name in c.roles.train:
        need(name in sets, f"roles.train holds {name!r}, but no role uses that set; the sets are "
                           f"{sorted(sets)} (roles.act, roles.write)")
    need(c.learner.row_tokens >= c.rollout.context_tokens,
         f"learner.row_tokens = {c.learner.row_tokens} cannot hold a conversation of "
         f"rollout.context_tokens = {c.rollout.context_tokens}; raise the first")
    need(c.rollout.write_tokens > c.rollout.memory_tokens,
         f"rollout.write_tokens = {c.rollout.write_tokens} leaves no room for a memory of "
         f"rollout.memory_tokens = {c.rollout.memory_tokens} and its end-of-turn; raise the first")
    need(tuple(sorted(set(c.sampler.prefill_chunks))) == tuple(c.sampler.prefill_chunks)
         and c.sampler.prefill_chunks[0] >= 1,
         "sampler.prefill_chunks must be positive and ascending")
    need(c.sampler.kind != "openai" or c.sampler.openai_model,
         "sampler.kind = 'openai' needs sampler.openai_model: the model's name at the service")
    need([c.learner.mesh_data, c.learner.mesh_fsdp, c.learner.mesh_tensor].count(-1) <= 1,
         "at most one of learner.mesh_data, mesh_fsdp, mesh_tensor may be -1")
    for name in ("mesh_data", "mesh_fsdp", "mesh_tensor"):
        need(c.learner[name] != 0, f"learner.{name} = 0: use 1 for an axis that is not used")
    need(c.env.domain != "codebase" or c.rollout.env_timeout_s >= 400,
         f"rollout.env_timeout_s = {c.rollout.env_timeout_s}: a grade on codebase runs tests three "
         "times at most, of 120 s each, and would end as a failure of this machine; set 600")
    need(bool(c.env.split_file) == bool(c.env.episodes_file),
         "env.episodes_file and env.split_file go together; set both or neither")
    need(c.env.hold_out == "chemistries" or not c.env.episodes_file,
         "env.hold_out = 'graphs' means nothing to recorded episodes, which env.split_file "
         "divides; leave it at 'chemistries'")
    need(not c.eval.libraries_file or bool(c.eval.tasks_file),
         "eval.libraries_file says where the files of eval.tasks_file are; set that as well")
    need(not c.eval.tasks_file or c.env.domain != "codebase" or bool(c.eval.libraries_file),
         f"eval.tasks_file = {c.eval.tasks_file!r} needs eval.libraries_file: where the files of "
         "its tasks are (docs/codebase.md)")
    need(c.eval.protocol == "streams" or tuple(c.eval.interventions) == ("blanked",),
         f"eval.interventions = {c.eval.interventions} are those of eval.protocol = 'streams'; "
         f"{c.eval.protocol!r} has its own baseline: leave them at 'blanked'")
    need("swapped" not in c.eval.interventions or c.eval.streams > 1,
         "eval.interventions = 'swapped' reads another stream's memory; set eval.streams to 2 or "
         "more")
    if c.env.supply == "every_colour":
        need(c.env.potions % 6 == 0, f"env.potions = {c.env.potions} is no multiple of 6, which "
                                     "env.supply = every_colour needs")
    need(c.warm_start.writer_keeps + c.warm_start.writer_last <= 1,
         "warm_start.writer_keeps + warm_start.writer_last exceed 1")


def notes(c: ml_collections.ConfigDict) -> list[str]:
    """What a training does that its user may not mean; nothing is wrong with it."""
    found = []
    own = c.env.domain == "alchemy" and not c.env.episodes_file
    met = c.steps * c.rollout.streams_per_step
    if own and len(c.env.edges) > 1 and c.env.order == "curriculum" and met < c.env.pass_streams:
        found.append(
            f"this run ends with stream {met} of a curriculum of env.pass_streams = "
            f"{c.env.pass_streams}: the hardest tiers of env.edges come later, and may not occur. "
            f"env.pass_streams={met} fits the curriculum into it, env.order=shuffled mixes them")
    return found
