"""The update by TRL's `GRPOTrainer`: its reference pass, `compute_loss` and optimiser.

Driven as its own training loop does for a batch that has been generated and scored, without the
loop's logging. Gradient checkpointing is off, as in the other programs.
"""

import pathlib
from collections.abc import Callable

import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from benchmarks.grpo_peers import task as task_lib
from benchmarks.grpo_peers import worker


def make_update(folder: pathlib.Path) -> Callable[[], float]:
    task = task_lib.load(folder)
    trainer = make_trainer(folder, task)
    model, optimizer = trainer.model, trainer.create_optimizer()
    inputs = prepared(task)
    model.train()

    def update() -> float:
        loss = trainer.compute_loss(model, inputs | {"ref_per_token_logps": reference()})
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), task.settings.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    @torch.no_grad()
    def reference() -> torch.Tensor:
        ids, mask = (torch.cat([inputs[f"{part}_{kind}"] for part in ("prompt", "completion")], 1)
                     for kind in ("ids", "mask"))
        return trainer._get_per_token_logps_and_entropies(
            trainer.ref_model, ids, mask, inputs["completion_ids"].shape[1])[0]

    return update


def make_trainer(folder: pathlib.Path, task: task_lib.Task) -> GRPOTrainer:
    s, n = task.settings, len(task.prompts)
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"), use_cpu=True, bf16=False, gradient_checkpointing=False,
        report_to="none", per_device_train_batch_size=n, gradient_accumulation_steps=1,
        num_generations=n, max_completion_length=task.completions.shape[1], loss_type="dapo",
        epsilon=s.clip_low, epsilon_high=s.clip_high, beta=s.kl_coef, use_bias_correction_kl=False,
        learning_rate=s.lr, adam_beta1=s.b1, adam_beta2=s.b2, adam_epsilon=s.eps, weight_decay=0.0)
    # The trainer loads its reference from where the model comes from.
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "reference", dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model, args=arguments, reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * n}),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder / "policy"))
    trainer.model.load_state_dict(transformers.AutoModelForCausalLM.from_pretrained(
        folder / "policy", dtype=torch.float32).state_dict())
    trainer.current_gradient_accumulation_steps = 1  # as its loop does
    return trainer


def prepared(task: task_lib.Task) -> dict[str, torch.Tensor]:
    """What the trainer makes of generated sequences."""
    prompts, completions = torch.from_numpy(task.prompts), torch.from_numpy(task.completions)
    mask = (completions != task_lib.PAD).long()
    return {
        "prompt_ids": prompts.long(), "prompt_mask": (prompts != task_lib.PAD).long(),
        "completion_ids": completions.long(), "completion_mask": mask,
        "advantages": torch.from_numpy(task.advantages),
        "old_per_token_logps": torch.from_numpy(task.behaviour), "num_items_in_batch": mask.sum(),
    }


if __name__ == "__main__":
    worker.serve(make_update, "trl", "transformers", "torch")
