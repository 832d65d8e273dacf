"""Every option of rime_jax once: its default, unit, range and reason.

`default()` is the main job: RIME on Symbolic Alchemy with the small policy. An experiment file
changes fields of it and returns it. `validate()` runs before anything else in every program; it
names the wrong field, what it allows and what to do.
"""

import difflib
import json
import logging
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from rime_jax import config_rules
from rime_jax import options as option_lib
from rime_jax.options import ConfigError, Option

_log = logging.getLogger(__name__)

# The samplers seed with words of 32 bits: beyond, two seeds would be one.
SEEDS = 1 << 32

OPTIONS: dict[str, Any] = {
    "name": Option("rime", "name of the experiment; the run directory's default last part"),
    "seed": Option(0, "seeds streams, sampling and mini-batch order", low=0, high=SEEDS - 1),
    "steps": Option(100, "iterations (rollouts + update)", low=0),
    "run_dir": Option("", "run directory; empty: runs/<name>"),
    "resume": Option(True, "continue from the run directory's newest checkpoint if it has one"),
    "model": {
        "path": Option(
            "tiny-alchemy-v1",
            "a model directory in Hugging Face layout (config.json, *.safetensors, tokenizer), or "
            "the name of one shipped in rime_jax/assets. It is the initial policy, also of the KL",
        ),
        "branch_from": Option(
            "",
            "RUN/checkpoints/STEP of another run whose parameters this one starts from, a set for "
            "each role; STEP may be `last`, of a run that has ended. The optimiser starts anew. "
            "The KL stays that to model.path. Keep the checkpoint (its track.checkpoint_keep)",
        ),
        "dtype": Option("float32", "of activations", choices=("float32", "bfloat16")),
        "remat": Option(
            "none",
            "what is kept for the backward pass, the rest is computed again: none (no remat, all is"
            " kept) | layer (the input of each layer: least memory) | attention (and the output of "
            "splash attention) | matmuls (and the products with matrices)",
            choices=("none", "layer", "attention", "matmuls"),
        ),
        "attention": Option(
            "auto",
            "kernel over packed sequences: auto (the platform's fused one where the shapes allow "
            "it) | xla | splash (TPU) | cudnn (GPU)",
            choices=("auto", "xla", "splash", "cudnn"),
        ),
        "thinking": Option(
            "auto",
            "enable_thinking of the chat template: auto (left out, the template decides) | on | off"
            "; no effect where the template does not know it. With thinking, rollout.act_tokens and"
            " write_tokens must have room for it",
            choices=("auto", "on", "off"),
        ),
    },
    "roles": {
        "act": Option("policy", "name of the parameter set that plays the actor"),
        "write": Option("policy", "name of the parameter set that plays the writer; another name "
                                  "than roles.act makes two sets (decoupled)"),
        "train": Option(("policy",), "the parameter sets that are trained; a set left out is "
                                     "frozen", low=1),
    },
    "env": {
        "domain": Option("alchemy", "which environment: alchemy (a game) | codebase (repairs of "
                                    "repositories; needs Linux and a sandbox) | MODULE:FUNCTION of "
                                    "one's own (docs/new_environment.md)"),
        "form": Option("compact", "text form: compact (a few dozen words, for the small policy) | "
                                  "full (for LLMs)", choices=("compact", "full")),
        "trials": Option(6, "T, tasks of a stream; RIME's Alchemy: 10", low=1, high=100),
        "stones": Option(2, "stones of a trial; the benchmark: 3", low=1, high=3),
        "potions": Option(12, "potions of a trial; the benchmark: 12", low=1, high=12),
        "supply": Option(
            "every_colour",
            "potions of a trial: random (the benchmark) | every_colour (potions / 6 of each)",
            choices=("random", "every_colour"),
        ),
        "max_steps": Option(6, "actions of a trial; the benchmark: 20", low=1, high=100),
        "value_display": Option(
            "hidden",
            "hidden: a stone's value is shown only when it is banked (an eased study variant in "
            "which memory decides) | shown: always (the benchmark's rule)",
            choices=("hidden", "shown"),
        ),
        "end_when_banked": Option(True, "end a trial when no stone is left; the benchmark: False"),
        "min_oracle": Option(15, "draw a trial again until the oracle under the step limit scores "
                                 "this; 0: never (the benchmark)", low=0, high=45),
        "edges": Option((12,), "graph sizes that streams use, a tier each; fewer edges are harder",
                        low=1,
                        choices=(12, 10, 9, 8, 7)),
        "pass_streams": Option(950, "streams of one pass of the curriculum, which ends with the "
                                    "hardest; training has steps × rollout.streams_per_step",
                               low=1),
        "hold_out": Option(
            "chemistries",
            "what each tier of env.edges holds out: chemistries (each part of one, its graph, what "
            "its potions and its stones look like, does occur in training) | graphs (with all "
            "their chemistries; 12 edges have one graph only). A warm start knows what it has seen",
            choices=("chemistries", "graphs"),
        ),
        "heldout_fraction": Option(1 / 6, "share of env.hold_out of each tier (codebase: "
                                          "of the repositories, at least two) that only "
                                          "evaluation sees; the shipped warm start has seen all "
                                          "but the default's", low=0.001, high=0.9),
        "episodes_file": Option("", "JSONL of recorded episodes to use instead of generated ones"),
        "split_file": Option("", "JSON with the `order` (train) and `eval` episodes of that file"),
        "tasks_file": Option("", "codebase: JSONL of tasks (schema of SWE-smith); empty: the "
                                 "shipped set"),
        "libraries_file": Option("", "codebase: JSON list of where the files of those tasks are"),
        "segments": Option("6+6", "codebase: tasks of each segment of a stream, each of another "
                                  "repository; their sum is env.trials"),
        "order": Option("curriculum", "curriculum: easy to hard, codebase: the tasks of a segment; "
                                      "Alchemy: the streams of a pass, by tier | shuffled: in "
                                      "random order",
                        choices=("curriculum", "shuffled")),
        "levels_file": Option("", "codebase: JSON of pass rates by strategy that set easy and "
                                  "hard (rime_jax.levels_codebase makes it); empty: the study's"),
        "sandbox": Option("auto", "codebase: where commands run: auto (bubblewrap) | bubblewrap | "
                                  "docker | podman | apptainer | unsafe (as this user, with its "
                                  "files and the network)",
                          choices=("auto", "bubblewrap", "docker", "podman", "apptainer",
                                   "unsafe")),
        "cache_dir": Option("", "codebase: directory of sources, trees and environments; empty: "
                                "rime_jax/codebase in the user's cache"),
    },
    "rollout": {
        "streams_per_step": Option(4, "streams (groups) of one iteration; RIME: 8", low=1),
        "group_size": Option(16, "G, sibling rollouts of a stream; RIME: 8. One sibling has no "
                                 "group mean to be compared with", low=2),
        "act_tokens": Option(8, "largest number of new tokens of one reply; RIME: 2560", low=1),
        "write_tokens": Option(24, "largest number of new tokens of one memory; RIME: 2048", low=1),
        "memory_tokens": Option(22, "budget of a memory; a longer one is malformed", low=1),
        "context_tokens": Option(128, "tokens of one conversation, prompt and replies", low=16),
        "max_format_errors": Option(3, "replies without an action, in a row, that end a task",
                                    low=1),
        "temperature": Option(1.0, "sampling temperature of training (at 0 all siblings would be "
                                   "the same); log-probabilities are always those at 1",
                              low=0.01, high=10.0),
        "writer_context": Option(
            "continue",
            "what the writer reads: continue (the actor's own conversation goes on, the cache is "
            "kept) | fresh (a new prompt with memory, transcript and outcome)",
            choices=("continue", "fresh"),
        ),
        "on_malformed": Option(
            "replace",
            "what the next task sees after a malformed memory: replace (what was written, cut at "
            "the budget) | keep (the memory before)",
            choices=("replace", "keep"),
        ),
        "env_timeout_s": Option(120.0, "seconds one environment call may take (environments that "
                                       "are not inline)", low=0.001),
        "retries": Option(2, "times a rollout is started again after an infrastructure failure "
                             "(env_crash, env_timeout, sampler_error)", low=0, high=10),
    },
    "judge": {
        "kind": Option("lexical", "lexical (embedded, deterministic) | server (a language model, "
                                  "see docs/judge.md) | none",
                       choices=("lexical", "server", "none")),
        "timeout_s": Option(60.0, "seconds one verdict may take; server: one request", low=0.001),
        "urls": Option(("http://127.0.0.1:8100/v1",), "server: bases of the servers, which share "
                                                      "the work", low=1),
        "model": Option("", "server: the model's name there; verdicts are cached under it"),
        "concurrency": Option(32, "server: questions under way at a time, for each process", low=1),
        "retries": Option(2, "server: times a question is asked again before it has no verdict",
                          low=0, high=10),
        "cache_dir": Option("", "server: directory of cached verdicts, which runs may share; "
                                "empty: judge_cache in the run directory"),
    },
    "reward": {
        "credit": Option("rime", "how rewards become advantages: rime (the method) | cod (the mean "
                                 "reward from there on, less the siblings' mean) | skillrise (the "
                                 "writer earns the discounted rewards of the later tasks)",
                         choices=("rime", "cod", "skillrise")),
        "discount": Option(0.9, "gamma of skillrise, for each task further on; our choice",
                           low=0.0, high=1.0),
        "writer": Option("improvement", "what pays the writer: improvement (w_t of the method) | "
                                        "format (1 for a well-formed memory) | none (untrained)",
                         choices=("improvement", "format", "none")),
        "horizon": Option(3, "K, tasks in each window of the improvement", low=1),
        "horizon_stays_in_segment": Option(False, "cut the improvement's windows at the end of a "
                                                  "segment"),
        "history_baseline": Option(
            "window",
            "what the improvement takes off the next window: window (the mean of the last K "
            "rewards; the post) | fitted (a coefficient for each of the K, fitted to the other "
            "streams of the iteration; docs/credit.md) | none",
            choices=("window", "fitted", "none"),
        ),
        "malformed": Option(
            "group_min",
            "what a malformed memory earns: zero (the post: pays it above its siblings after a "
            "good task) | group_min (the smallest reward of its well-formed siblings)",
            choices=("zero", "group_min"),
        ),
        "format_bonus": Option(0.0, "added to the writer's reward of a well-formed memory; the "
                                    "reference run: 0.1", low=0.0, high=10.0),
        "exploration": Option(0.3, "lambda, weight of the exploration advantage of ACT; 0: off",
                              low=0.0, high=10.0),
        "std_floor": Option(1e-3, "a group whose rewards have a smaller standard deviation gives "
                                  "no gradient for that reward", low=0.0),
        "eps": Option(1e-6, "added to the standard deviation", low=0.0),
    },
    "learner": {
        "lr": Option(4e-4, "AdamW learning rate, constant after warm-up; RIME: 1e-6", low=0.0),
        "warmup_updates": Option(12, "optimiser updates from a tenth of lr to lr", low=0),
        "b1": Option(0.9, "AdamW, below 1", low=0.0, high=0.99999),
        "b2": Option(0.98, "AdamW, below 1", low=0.0, high=0.99999),
        "weight_decay": Option(0.0, "AdamW; RIME: 0.1", low=0.0),
        "grad_clip": Option(1.0, "largest global norm of a gradient", low=0.0),
        "minibatches": Option(2, "optimiser updates per iteration; RIME: 1 (on-policy)", low=1),
        "clip_low": Option(0.2, "the ratio is clipped below at 1 - clip_low", low=0.0, high=1.0),
        "clip_high": Option(0.28, "and above at 1 + clip_high (DAPO)", low=0.0),
        "aggregation": Option("token", "mean over all trained tokens | sequence: mean over the "
                                       "tokens of a sample, then over samples (RIME)",
                              choices=("token", "sequence")),
        "kl_coef": Option(0.0, "weight of the KL to the initial policy; RIME: 0.01", low=0.0),
        "kl_estimator": Option("k3", "k1 | k2 | k3; the gradient of k1 is not that of the KL",
                               choices=("k1", "k2", "k3")),
        "reference_memory": Option("device", "where the initial policy lies between uses: device | "
                                             "host (pinned memory; sent once per iteration)",
                                   choices=("device", "host")),
        "reference_pass": Option("separate", "its log-probabilities: separate (a program of their "
                                             "own, before the updates) | update (inside of it)",
                                 choices=("separate", "update")),
        "old_logprobs": Option(
            "sampler",
            "denominator of the ratio: sampler (its own log-probabilities) | learner (computed "
            "again before the update; the sampler's are then corrected for by importance weights)",
            choices=("sampler", "learner"),
        ),
        "importance_cap": Option(2.0, "largest importance weight (old_logprobs = learner)",
                                 low=1.0),
        "log_ratio_clamp": Option(20.0, "log-ratios are clamped to this before exp", low=0.1),
        "row_tokens": Option(192, "length of a packed row; at least rollout.context_tokens",
                             low=16),
        "microbatch_rows": Option(8, "packed rows of one forward and backward pass, over all "
                                      "devices", low=1),
        "mesh_data": Option(-1, "devices along the data axis; -1: the rest", low=-1),
        "mesh_fsdp": Option(1, "devices along which parameters are sharded; -1: the rest", low=-1),
        "mesh_tensor": Option(1, "devices along which heads and features are sharded; -1: the "
                                 "rest", low=-1),
    },
    "sampler": {
        "slots": Option(64, "sessions of one process that are decoded together; a multiple of its "
                            "devices",
                        low=1),
        "tensor": Option(1, "local devices that share one copy of the parameters, for models that "
                            "do not fit one", low=1),
        "decode_block": Option(24, "tokens per dispatch", low=1),
        "prefill_chunks": Option((8, 32), "numbers of prompt tokens per dispatch (one compiled "
                                          "program each), ascending", low=1),
        "shared_prefix": Option(128, "fewest prompt tokens that are copied from a session that "
                                     "begins alike instead of being computed again", low=1),
        "kind": Option("native", "who generates: native (the local devices; the options above are "
                                 "its own) | vllm (servers, see docs/vllm.md) | openai (a chat "
                                 "service, for evaluation only)",
                       choices=("native", "vllm", "openai")),
        "urls": Option(("http://127.0.0.1:8000",), "vllm: the servers; with two parameter sets "
                                                   "each as SET=URL. openai: one base, such as "
                                                   "http://127.0.0.1:8000/v1", low=1),
        "request_s": Option(600.0, "seconds for one answer of a server; a generation waits as long "
                                   "for a server while none is there", low=0.1),
        "generation_s": Option(0.0, "seconds of one generation, its waiting and repeated requests "
                                    "included, after which its rollout counts as sampler_error; "
                                    "0: no limit", low=0.0),
        "exchange_dir": Option("", "vllm: directory for new weights, under the same path for this "
                                   "program and all servers; empty: a temporary one, for servers on"
                                   " this machine"),
        "gap_limit": Option(0.1, "vllm: largest mean distance between a server's and the learner's "
                                 "log-probabilities of a probe prompt; rounding explains about 1e-6"
                                 " in float32 and some 0.05 in bfloat16", low=0.0),
        "openai_model": Option("", "openai: the model's name at the service"),
        "openai_requests": Option(16, "openai: requests at a time", low=1),
        "openai_tokens": Option(1_000_000, "openai: tokens, of prompts and replies, after which an "
                                           "evaluation stops", low=1),
    },
    "eval": {
        "every": Option(20, "iterations between evaluations during training (and one before the "
                            "first); 0: only at the end", low=0),
        "streams": Option(64, "held-out streams", low=1),
        "rollouts": Option(4, "rollouts of each at the end and in rime_jax.evaluate", low=1),
        "rollouts_during": Option(1, "rollouts of each during training", low=1),
        "temperature": Option(1.0, "sampling temperature", low=0.0, high=10.0),
        "scaffolds": Option(
            ("act_write",),
            "what is evaluated, the first also during training: act_write (the written memory is "
            "all that reaches the next task) | in_context (earlier tasks stay in the conversation, "
            "the oldest are dropped when it is full) | stateless (nothing does)",
            low=1, choices=("act_write", "in_context", "stateless"),
        ),
        "interventions": Option(
            ("blanked",),
            "what is played beside the memory as it was written: blanked (before each task; the "
            "gain needs it) | swapped (each task reads another stream's memory) | corrupted (one "
            "fact is turned into its opposite, and the writer goes on from there)",
            low=1, choices=("blanked", "swapped", "corrupted"),
        ),
        "protocol": Option(
            "streams",
            "streams (held-out ones, each played eval.rollouts times) | runs (one stream in "
            "eval.runs orders, as Continual Learning Bench does: cumulative reward and gain)",
            choices=("streams", "runs"),
        ),
        "runs": Option(5, "runs: orders of the stream; the first is its own, the others are "
                          "shuffled inside each segment", low=1, high=1000),
        "baseline_samples": Option(1, "runs: stateless plays of each task; RIME: 4", low=1),
        "tasks_file": Option("", "what is evaluated instead of held-out streams, and never trained "
                                 "on. alchemy: JSONL of recorded episodes; codebase: JSONL of the "
                                 "benchmark's tasks"),
        "libraries_file": Option("", "codebase: JSON list of where the files of eval.tasks_file "
                                     "are"),
        "bootstrap": Option(2000, "resamples (by stream) of the 95 % intervals", low=100),
        "seed": Option(123, "of the evaluation's streams and sampling", low=0, high=SEEDS - 1),
    },
    "track": {
        "samples_every": Option(10, "iterations between dumps of trajectories and memories to "
                                    "samples/; 0: never", low=0),
        "text_every": Option(10, "iterations between texts and histograms in TensorBoard; 0: never",
                             low=0),
        "kl_every": Option(10, "iterations between measurements of the KL to the initial policy; "
                               "0: never", low=0),
        "checkpoint_every": Option(20, "iterations between checkpoints", low=1),
        "checkpoint_keep": Option(2, "newest checkpoints that are kept", low=1),
    },
    "warm_start": {
        "initial": Option("", "an earlier warm start (directory or shipped name) of the same sizes "
                              "that is taught further, in a quarter of the updates; what it has "
                              "seen counts as seen. Empty: random parameters"),
        "steps": Option(2400, "supervised updates of the warm start", low=1),
        "sequences": Option(64, "demonstrations of one update", low=1),
        "lr": Option(4e-3, "AdamW peak learning rate, cosine to a twentieth", low=0.0),
        "weight_decay": Option(0.01, "AdamW", low=0.0),
        "clean_share": Option(0.58, "first share of the updates with clean demonstrations; the "
                                    "rest has the writer's mixture", low=0.0, high=1.0),
        "writer_keeps": Option(0.25, "share of noisy writers that keep and add", low=0.0, high=1.0),
        "writer_last": Option(0.6, "share that describe the last task only; the rest drops facts "
                                    "at random", low=0.0, high=1.0),
        "explore_clean": Option(0.8, "chance that the clean actor tries an unknown potion",
                                low=0.0, high=1.0),
        "explore_noisy": Option(0.4, "the same in the second phase", low=0.0, high=1.0),
        "given_memory_clean": Option(0.6, "share of tasks that start from a fresh true or partial "
                                          "memory instead of the written one", low=0.0, high=1.0),
        "given_memory_noisy": Option(0.4, "the same in the second phase", low=0.0, high=1.0),
        "env_token_weight": Option(0.5, "loss weight of tokens that are not the policy's own",
                                   low=0.0, high=1.0),
        "hidden_size": Option(64, "width of the small policy", low=8),
        "layers": Option(3, "layers of the small policy", low=1),
        "intermediate_size": Option(192, "width of its SwiGLU", low=8),
        "heads": Option(4, "query heads of 16 dimensions; half as many key/value heads", low=2),
    },
}


def default() -> ml_collections.ConfigDict:
    """The configuration of the main job, locked: an unknown field cannot be set."""
    return _to_config(OPTIONS).lock()


def _to_config(tree: Mapping[str, Any]) -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    for name, node in tree.items():
        config[name] = node.default if isinstance(node, Option) else _to_config(node)
    return config


def options(tree: Mapping[str, Any] = OPTIONS, prefix: str = "") -> Iterator[tuple[str, Option]]:
    """Every option with its dotted name."""
    for name, node in tree.items():
        if isinstance(node, Option):
            yield prefix + name, node
        else:
            yield from options(node, f"{prefix}{name}.")


def get(config: ml_collections.ConfigDict, name: str) -> Any:
    """The value of a dotted name."""
    for part in name.split("."):
        config = config[part]
    return config


def override(config: ml_collections.ConfigDict, assignments: Mapping[str, str]) -> None:
    """Sets dotted names from strings (`--set learner.lr=1e-4`), with the option's own type.

    Raises:
      ConfigError: an unknown name, or a value that the option does not allow.
    """
    known = dict(options())
    for name, text in assignments.items():
        if name not in known:
            raise ConfigError(f"unknown option {name!r}.{_suggest(name, known)}")
        _assign(config, name, option_lib.parse(name, text, known[name]), known[name])


def _assign(config: ml_collections.ConfigDict, name: str, value: Any, option: Option) -> None:
    option_lib.check(name, value, option)
    *parents, last = name.split(".")
    for part in parents:
        config = config[part]
    config[last] = float(value) if isinstance(option.default, float) else value


def load(path: str) -> ml_collections.ConfigDict:
    """A resolved configuration (config.json of a run directory) as saved by `dump`.

    An option that is newer than the file takes its default, which is how the run was made: a new
    option's default changes nothing. The log names it.

    Raises:
      ConfigError: the file cannot be read, or has an option that does not exist.
    """
    try:
        with open(path) as f:
            saved = json.load(f)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error}") from error
    if not isinstance(saved, dict):
        raise ConfigError(f"{path} holds no JSON object; write it with config.dump")
    config = default()
    flat = dict(flatten(saved))
    known = dict(options())
    for name in flat:
        if name not in known:
            raise ConfigError(f"{path}: unknown option {name!r}.{_suggest(name, known)}")
    if newer := [f"{name}={option.default!r}" for name, option in known.items()
                 if name not in flat]:
        _log.warning("%s lacks options, which take their defaults: %s", path, ", ".join(newer))
    for name, option in known.items():
        value = flat.get(name, option.default)
        try:
            _assign(config, name, tuple(value) if isinstance(value, list) else value, option)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return config


def dump(config: ml_collections.ConfigDict) -> str:
    """JSON of the resolved configuration; `load` reads it back."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted name."""
    for name, node in tree.items():
        if isinstance(node, (Mapping, ml_collections.ConfigDict)):
            yield from flatten(node, f"{prefix}{name}.")
        else:
            yield prefix + name, node


def validate(config: ml_collections.ConfigDict) -> None:
    """Checks every field alone, then the fields against each other.

    Raises:
      ConfigError: names the field, what it allows and the remedy.
    """
    known = dict(options())
    for name, _ in flatten(config):
        if name not in known:
            raise ConfigError(f"unknown option {name!r}.{_suggest(name, known)}")
    for name, option in known.items():
        try:
            value = get(config, name)
        except (KeyError, TypeError):
            raise ConfigError(f"option {name!r} is missing; start from config.default()") from None
        option_lib.check(name, value, option)
    config_rules.check(config)


def as_text(value: Any) -> str:
    """A value as `--set` takes it, quoted for a shell."""
    return shlex.quote(",".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _suggest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    last = name.split(".")[-1].replace("_", " ")
    # What a mistyped name means often stands in the option's description (lambda, learning rate).
    near += [n for n, o in known.items() if n not in near and isinstance(o, Option)
             and last in o.doc.lower()][:2]
    return f" Did you mean {' or '.join(near)}?" if near else " See rime_jax/config.py for all."
