"""Warm start: the small policy learns to play and to write from scripted demonstrations.

It stands in for pre-training where no pretrained model can be had. The actor learns to read memory
well; the writer learns a mixture of good and bad habits, which reinforcement then has to sort out.
Only training chemistries are shown. The result is a model directory like any other.

    python -m rime_jax.warm_start --config=experiments/alchemy/models/warm_start.py --out=DIR
"""

import argparse
import functools
import pathlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from rime_jax import config as config_lib
from rime_jax import domains, experiment, prompts
from rime_jax.envs.alchemy import demonstrations, text_compact
from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import chat as chat_lib
from rime_jax.policy import qwen3, weights, words
from rime_jax.tracking import progress

# Padded lengths, as shares of rollout.context_tokens: one compiled program each.
_LENGTH_SHARES = (0.5, 0.75, 1.0)
# Sequences are sorted by length within this many batches.
_POOL_BATCHES = 12
# Policy tokens and others; others weigh less in the loss.
Sequence = tuple[list[int], list[bool]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    experiment.add_arguments(parser)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="model directory to write")
    arguments = parser.parse_args()
    with experiment.clean_errors():
        config = experiment.read(arguments.config, arguments.set)
        # Found out before the training, not after it.
        arguments.out.mkdir(parents=True, exist_ok=True)
        policy, params, tokenizer = train(config)
        weights.save(arguments.out, policy, params, tokenizer)
    print(f"saved {arguments.out}; use it with --set model.path={arguments.out}")


def train(config: ml_collections.ConfigDict) -> tuple[qwen3.Qwen3, qwen3.Params, Any]:
    """The trained small policy, its parameters and its tokenizer."""
    options = config.warm_start
    tokenizer = words.word_tokenizer(text_compact.WORDS)
    policy = qwen3.Qwen3(model_config(options, len(tokenizer)))
    mesh = mesh_lib.make_mesh(config.learner, jax.devices())
    batches = _prefetch(make_batches(config, chat_lib.ChatTokens(tokenizer)))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh_lib.ROWS))
    initial = _initial_params(config, policy, tokenizer)
    params = jax.device_put(initial, mesh_lib.replicated(mesh))
    optimizer = _optimizer(options)
    opt_state = jax.device_put(optimizer.init(params), mesh_lib.replicated(mesh))
    update = jax.jit(functools.partial(_update, policy, optimizer), donate_argnums=(0, 1))
    line = progress.Progress(options.steps)
    losses: list[jax.Array] = []
    for step in range(options.steps):
        batch = jax.device_put(next(batches), rows)
        params, opt_state, found = update(params, opt_state, *batch)
        losses.append(found)
        if step % 50 == 49 or step + 1 == options.steps:
            own, other = np.mean(jax.device_get(losses), 0)
            losses.clear()
            line.update(step + 1, {"loss of policy tokens": own, "of other tokens": other})
    return policy, params, tokenizer


def _initial_params(config: ml_collections.ConfigDict, policy: qwen3.Qwen3, tokenizer: Any) -> Any:
    """Random ones, or those of the model that is taught further."""
    path = config.warm_start.initial
    if not path:
        return policy.init(jax.random.key(config.seed))
    directory = weights.resolve(path)
    if weights.load_tokenizer(directory).get_vocab() != tokenizer.get_vocab():
        raise config_lib.ConfigError(
            f"warm_start.initial = {path}: its words are not those of the compact text form; name "
            "a model that rime_jax.warm_start made")
    return weights.load(directory, policy)


def model_config(options: ml_collections.ConfigDict, vocab_size: int) -> qwen3.Qwen3Config:
    """Sizes of the small policy under `config.warm_start`."""
    return qwen3.Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=options.hidden_size,
        intermediate_size=options.intermediate_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads // 2,
        head_dim=16,
        rope_theta=1e4,
        initializer_range=0.08,
    )


def make_batches(
    config: ml_collections.ConfigDict, chat: chat_lib.ChatTokens
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Batches (tokens int32 [B, T], weights float32 [B, T], own bool [B, T]), one per update."""
    options = config.warm_start
    rng = np.random.default_rng((config.seed, 1))
    lengths = [int(share * config.rollout.context_tokens) for share in _LENGTH_SHARES]
    per_pool = options.sequences * _POOL_BATCHES
    for first in range(0, options.steps, _POOL_BATCHES):
        clean = first < options.clean_share * options.steps
        source = demonstrated_sequences(config, chat, clean, rng)
        pool = sorted((next(source) for _ in range(per_pool)), key=lambda s: len(s[0]))
        for b in rng.permutation(_POOL_BATCHES):
            own = pool[b * options.sequences : (b + 1) * options.sequences]
            yield _pad(own, lengths, options.env_token_weight)


def demonstrated_sequences(
    config: ml_collections.ConfigDict, chat: chat_lib.ChatTokens, clean: bool,
    rng: np.random.Generator,
) -> Iterator[Sequence]:
    """Endless demonstrations: ids of a task and the memory after it, and which are the policy's."""
    options = config.warm_start
    phase = "clean" if clean else "noisy"
    habits = demonstrations.Habits(
        explore=options[f"explore_{phase}"],
        slip=0.03,
        writer_keeps=1.0 if clean else options.writer_keeps,
        writer_last=0.0 if clean else options.writer_last,
        slip_write=0.01 if clean else 0.03,
    )
    rules = domains.alchemy_rules(config.env)
    make_stream = domains.alchemy_stream_maker(config.env, "train")
    while True:
        stream = make_stream(int(rng.integers(1 << 31)), rng)
        facts: demonstrations.Facts = {}
        memory = ""
        for task in stream.tasks:
            chemistry = task.payload["chemistry"]
            if rng.random() < options[f"given_memory_{phase}"]:
                facts = demonstrations.some_true_facts(chemistry, rng)
                memory = demonstrations.memory_text(facts)
            demonstration, facts = demonstrations.demonstrate(
                chemistry, task.payload["trial"], rules, facts, habits, rng
            )
            yield encode(chat, memory, demonstration)
            memory = demonstration.memory


def encode(
    chat: chat_lib.ChatTokens, memory: str, demonstration: demonstrations.Demonstration
) -> Sequence:
    """The conversation of a demonstration, as the rollout loop would build it."""
    wording = prompts.CompactPrompts()
    ids = chat.opening(wording.act(memory, demonstration.observation))
    own = [False] * len(ids)

    def add(new: list[int], is_own: bool) -> None:
        ids.extend(new)
        own.extend([is_own] * len(new))

    for i, (reply, answer) in enumerate(demonstration.turns):
        add([*chat.text(reply), chat.end_of_turn], True)
        last = i + 1 == len(demonstration.turns)
        message = wording.write_on(answer, "") if last else answer
        add(chat.turn(message, chat.end_of_turn), False)
    add([*chat.text(demonstration.memory), chat.end_of_turn], True)
    return ids, own


def _pad(
    sequences: list[Sequence], lengths: list[int], env_token_weight: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    longest = max(len(ids) for ids, _ in sequences)
    length = next((n for n in lengths if n >= longest), None)
    if length is None:
        raise config_lib.ConfigError(
            f"rollout.context_tokens = {lengths[-1]} cannot hold a demonstration of {longest} "
            "tokens; raise it"
        )
    tokens = np.zeros((len(sequences), length), np.int32)
    weight = np.zeros((len(sequences), length), np.float32)
    own = np.zeros((len(sequences), length), bool)
    for row, (ids, is_own) in enumerate(sequences):
        n = len(ids)
        tokens[row, :n], own[row, :n] = ids, is_own
        weight[row, 1:n] = np.where(is_own[1:], 1.0, env_token_weight)
    return tokens, weight, own


def _prefetch(batches: Iterator) -> Iterator:
    """Makes batches in a thread while the devices compute."""
    ready: queue.Queue = queue.Queue(maxsize=4 * _POOL_BATCHES)

    def fill() -> None:
        try:
            for batch in batches:
                ready.put(batch)
        except Exception as error:
            ready.put(error)

    threading.Thread(target=fill, daemon=True, name="demonstrations").start()
    while True:
        item = ready.get()
        if isinstance(item, Exception):
            raise item
        yield item


def _optimizer(options: ml_collections.ConfigDict) -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, options.lr, min(80, options.steps // 4), options.steps, options.lr / 20
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b1=0.9, b2=0.98, weight_decay=options.weight_decay),
    )


def _update(
    policy: qwen3.Qwen3, optimizer: optax.GradientTransformation, params, opt_state,
    tokens: jax.Array, weight: jax.Array, own: jax.Array,
):
    """One supervised update; also the mean losses of the policy's and of all other tokens."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    segments = jnp.ones_like(tokens)

    def loss(params):
        hidden = policy.forward(params, tokens, positions, segments)
        logp = jax.nn.log_softmax(policy.logits(params, hidden[:, :-1]))
        target = jax.nn.one_hot(tokens[:, 1:], policy.vocab_size)
        token_loss = -(logp * target).sum(-1)
        w, is_own = weight[:, 1:], own[:, 1:].astype(jnp.float32)
        other = (w > 0) * (1 - is_own)
        means = jnp.stack([(token_loss * m).sum() / m.sum() for m in (is_own, other)])
        return (token_loss * w).sum() / w.sum(), means

    (_, means), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    change, opt_state = optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, change), opt_state, means


if __name__ == "__main__":
    main()
