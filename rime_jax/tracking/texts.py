"""What people read of a run: rollouts as text, sample files, and the layout of the curves."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rime_jax.judge.base import CRITERIA

# Custom Scalars tab: {category: {chart: regular expressions of tags}}.
LAYOUT: Mapping[str, Mapping[str, list[str]]] = {
    "Does it learn through memory?": {
        "held-out performance, with and without memory": ["eval/performance", "eval/stateless"],
        "gain over the memory-blanked self": ["eval/gain"],
        "improvement within the stream": ["eval/improvement", "performance/improvement"],
    },
    "Where in the stream?": {
        "performance by position": [r"performance/at_\d+"],
        "pass fraction by place in the segment": [r"segment/solved_at_\d+"],
        "groups with a gradient by place in the segment": [r"segment/gradient_at_\d+"],
        "performance by place in the segment": [r"segment/performance_at_\d+"],
        "tasks met for the first time, and again": [r"exposure/.*"],
    },
    "Does exploration pay, or is it shown?": {
        "exploration score": ["exploration/score"],
        "gain over the memory-blanked self": ["eval/gain"],
        "criteria": [f"exploration/{c}" for c in CRITERIA],
        "tested before submitting, and not": ["env/tested_before_submit", "env/blind_submit"],
    },
    "What is in the memory?": {
        "facts": ["memory/correct_facts", "memory/wrong_facts"],
        "retention": ["memory/retention_exact", "memory/retention_fuzzy"],
        "length": ["memory/tokens", "memory/items"],
        "well-formed": ["memory/well_formed", r"memory/malformed_after_.*"],
    },
    "Is the update healthy?": {
        "KL to the initial policy": [r"learner/.*/kl_to_initial"],
        "clipped": [r"learner/.*/clip.*"],
        "sampler against learner": [r"learner/.*/logprob_gap.*"],
        "groups without a gradient": [r"credit/zero_variance_.*"],
        "what the writer's reward measures": [r"credit/corr_improvement_.*"],
    },
}


def rollout_texts(rollouts: Sequence[Any]) -> dict[str, str]:
    """Tag → Markdown: one whole rollout, and the last memories of one group."""
    if not rollouts or not rollouts[0].tasks:
        return {}
    first = rollouts[0]
    group = [r for r in rollouts if r.group == first.group and r.tasks]
    memories = "\n\n".join(
        f"**sibling {r.sibling}**\n\n{_quote(r.tasks[-1].memory_after)}" for r in group
    )
    return {"rollout": _rollout(first), "memories": memories}


def sample_rows(rollouts: Sequence[Any], credit: Any) -> Iterator[dict[str, Any]]:
    """One row per task: conversation, memories, rewards and what they were credited with.

    A rollout that an infrastructure failure ended has one row more, of the task that was lost; it
    says which one and the status of the failure, and nothing else. A weight of 0: the sample left
    the loss.
    """
    for rollout in rollouts:
        for t, record in enumerate(rollout.tasks):
            at = (rollout.group, rollout.sibling, t)
            yield _place(rollout, t) | {
                "status": record.status.value,
                "turns": record.turns,
                "judge_status": record.judge_status and record.judge_status.value,
                "reward": record.reward,
                "performance": record.performance,
                "criteria": record.verdict and list(record.verdict.criteria),
                "improvement": credit.improvement[at],
                "writer_reward": credit.writer_reward[at],
                "act_advantage": credit.act_advantage[at],
                "act_weight": credit.act_weight[at],
                "write_advantage": credit.write_advantage[at],
                "write_weight": credit.write_weight[at],
                "memory_before": record.memory_before,
                "memory_after": record.memory_after,
                "malformed": record.written.malformed,
                "format_errors": record.format_errors,
                "metrics": record.metrics,
                "transcript": record.transcript,
                "version": record.act.version,
            }
        if rollout.failure is not None:
            yield _place(rollout, len(rollout.tasks)) | {"status": rollout.failure.value}


def _place(rollout: Any, t: int) -> dict[str, Any]:
    task = rollout.stream.tasks[t]
    return {
        "stream": rollout.stream.id,
        "info": dict(rollout.stream.info),
        "task": task.id,
        "group": rollout.group,
        "sibling": rollout.sibling,
        "position": t + 1,
        "segment": task.segment,
    }


def _rollout(rollout: Any) -> str:
    lines = [f"stream {rollout.stream.id}, sibling {rollout.sibling}"]
    for t, record in enumerate(rollout.tasks, start=1):
        score = "none" if record.verdict is None else f"{record.verdict.score:.3f}"
        lines += [
            f"### task {t}: {record.status.value}, reward {record.reward:g}, exploration {score}",
            f"memory before: {_quote(record.memory_before)}",
            *(f"- *{speaker}*: {_quote(text)}" for speaker, text in record.transcript),
        ]
        if record.written.malformed:
            lines.append(f"memory malformed: {record.written.malformed}")
    return "\n\n".join(lines)


def _quote(text: str) -> str:
    """Text of the policy as inert code: it must not become markup in a reader's browser."""
    # splitlines also breaks at what some Markdown readers take for the end of a line.
    return "`" + " ⏎ ".join(text.replace("`", "'").splitlines()) + "`" if text else "*(empty)*"
