"""The update by tunix' `GRPOLearner` on an `RLCluster`: reference pass and actor's train step.

tunix can pack sequences too, but keeps them apart only in the flash attention of TPUs; here they
are padded.
"""

import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import transformers
from tunix.models.qwen3 import model as model_lib
from tunix.models.qwen3 import params as params_lib
from tunix.rl import rl_cluster as cluster_lib
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

from benchmarks.grpo_peers import task as task_lib
from benchmarks.grpo_peers import worker


def make_update(folder: pathlib.Path) -> Callable[[], float]:
    task = task_lib.load(folder)
    cluster = make_cluster(folder, task)
    trainer, tokenizer = cluster.actor_trainer, cluster.tokenizer
    prompts, completions = jnp.asarray(task.prompts), jnp.asarray(task.completions)
    given = dict(
        prompt_ids=prompts, prompt_mask=prompts != task_lib.PAD, completion_ids=completions,
        completion_mask=completions != task_lib.PAD, advantages=jnp.asarray(task.advantages),
        old_per_token_logps=jnp.asarray(task.behaviour))

    def update() -> float:
        reference = cluster.get_ref_per_token_logps(
            prompts, completions, tokenizer.pad_id(), tokenizer.eos_id())
        example = grpo_learner.TrainExample(**given, ref_per_token_logps=reference)
        cluster.update_actor([example], None)
        jax.block_until_ready(jax.tree.leaves(trainer.optimizer))
        # What its log shows one step later.
        return float(trainer._prev_buffered_train_metrics.loss)

    return update


def make_cluster(folder: pathlib.Path, task: task_lib.Task) -> cluster_lib.RLCluster:
    s = task.settings
    mesh = jax.sharding.Mesh([[jax.local_devices()[0]]], ("fsdp", "tp"))
    P, C = task.prompts.shape[1], task.completions.shape[1]
    sizes = model_config(folder)
    actor, reference = (
        params_lib.create_model_from_safe_tensors(str(folder / name), sizes, mesh, jnp.float32)
        for name in ("policy", "reference"))
    cluster = cluster_lib.RLCluster(
        actor=actor, reference=reference,
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder / "policy"),
        cluster_config=cluster_lib.ClusterConfig(
            role_to_mesh={role: mesh for role in (cluster_lib.Role.ACTOR, cluster_lib.Role.ROLLOUT,
                                                  cluster_lib.Role.REFERENCE)},
            rollout_config=base_rollout.RolloutConfig(
                max_prompt_length=P, max_tokens_to_generate=C, kv_cache_size=P + C,
                temperature=1.0),
            training_config=cluster_lib.RLTrainingConfig(
                actor_optimizer=optax.chain(
                    optax.clip_by_global_norm(s.grad_clip),
                    optax.adamw(s.lr, s.b1, s.b2, s.eps, weight_decay=0.0)),
                eval_every_n_steps=1 << 30)))
    algorithm = grpo_learner.GRPOConfig(
        loss_agg_mode="token-mean", kl_loss_mode="low_var_kl", beta=s.kl_coef, epsilon=s.clip_low,
        num_generations=len(task.prompts))
    algorithm.epsilon_high = s.clip_high  # its loss reads it, its constructor does not take it
    # It gives the cluster's trainer its loss.
    grpo_learner.GRPOLearner(
        cluster, algorithm, reward_fns=lambda prompts, **_: [0.0] * len(prompts))
    return cluster


def model_config(folder: pathlib.Path) -> model_lib.ModelConfig:
    given = json.loads((folder / "policy/config.json").read_text())
    return model_lib.ModelConfig(
        num_layers=given["num_hidden_layers"], vocab_size=given["vocab_size"],
        embed_dim=given["hidden_size"], hidden_dim=given["intermediate_size"],
        num_heads=given["num_attention_heads"], head_dim=given["head_dim"],
        num_kv_heads=given["num_key_value_heads"], norm_eps=given["rms_norm_eps"],
        rope_theta=given["rope_parameters"]["rope_theta"],
        use_tied_embedding=given["tie_word_embeddings"])


if __name__ == "__main__":
    worker.serve(make_update, "google-tunix", "flax", "jax")
