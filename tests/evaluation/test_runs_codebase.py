"""The benchmark's protocol as one program, on made-up repositories: real shells, tests and grades.

The agent repairs in three turns what it meets first and in two what it remembers how to do, and one
of the tasks it never repairs; so every number is known.
"""

import asyncio
import json
import re

import pytest

from rime_jax import config as config_lib
from rime_jax import domains
from rime_jax.evaluation import protocols, tables
from tests.envs.codebase import repositories
from tests.evaluation import games

NAMES, TURNS, RUNS = ("alpha", "beta"), 6, 2
UNSOLVED = "beta.op_change__1"


@pytest.fixture(scope="module")
def box():
    made = repositories.box()
    yield made
    made.close()


@pytest.fixture(scope="module")
def options(tmp_path_factory, box):
    """Two tasks of each repository, in files as a user would give them."""
    folder, rows, libraries = tmp_path_factory.mktemp("benchmark"), [], []
    for name in NAMES:
        library, tasks = repositories.make(folder, name)
        libraries.append(vars(library))
        (folder / "cache" / "environments").mkdir(parents=True, exist_ok=True)
        repositories.environment(folder / "cache" / "environments" / name)
        rows += [{
            "instance_id": t.instance_id, "repo": t.repository, "patch": t.setup_patch,
            "FAIL_TO_PASS": list(t.fail_to_pass), "PASS_TO_PASS": list(t.pass_to_pass),
            "problem_statement": t.statement} for t in tasks[:2]]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "libraries.json").write_text(json.dumps(libraries))
    return {
        "env__domain": "codebase", "env__segments": "2+2", "env__trials": 4,
        "rollout__env_timeout_s": 600.0,
        "env__max_steps": TURNS, "env__cache_dir": str(folder / "cache"),
        "eval__tasks_file": str(folder / "tasks.jsonl"),
        "eval__libraries_file": str(folder / "libraries.json"), "eval__protocol": "runs",
        "eval__runs": RUNS, "rollout__act_tokens": 2000, "rollout__context_tokens": 60_000,
        "learner__row_tokens": 60_000, "rollout__memory_tokens": 1000,
        "rollout__write_tokens": 1200}


def agent(session):
    if session.place.role == "write":
        return ("## Repository knowledge\n- tests are in tests/test_all.py\n- sums are in one file"
                "\n## Lessons and pitfalls\n- a wrong sign breaks a sum\n- Check the other sums")
    number, name = re.findall(r"add_(\d) of (\w+) returns", session.text)[-1]
    if f"{name}.op_change__{number}" == UNSOLVED:
        return repositories.SUBMIT
    repair = f"```bash\nsed -i 's/total = a - b/total = a + b/' {name}.py\n```"
    experienced = "a wrong sign breaks a sum" in session.text or "PASSED" in session.text
    test = [] if experienced else ["```bash\npython -m pytest -q 2>&1 | tail -1\n```"]
    return [repair, *test, repositories.SUBMIT][len(session.generated)]


def test_the_protocol_on_real_repositories(options, tmp_path):
    """Solved in two turns: 5/6; in three: 4/6. The first of each run is met without a memory."""
    sampler = games.Reader(agent, 60_000)
    made = games.built(sampler, _domain(options), **options)
    played = {name: asyncio.run(protocols.play(made, 1, scaffold=name))
              for name in ("act_write", "in_context")}
    found = protocols.results(played, made)
    assert found["instances"] == [
        "alpha.op_change__0", "alpha.op_change__1", "beta.op_change__0", UNSOLVED]
    for row in found["policies"].values():
        assert row["reward"] == pytest.approx({"mean": 4 / 6 + 2 * 5 / 6, "se": 0})
        assert row["stateless"]["mean"] == pytest.approx(3 * 4 / 6)
        assert row["gain"] == pytest.approx({"mean": 2 / 6, "se": 0})
        assert row["cumulative_gain_by_position"]["mean"][0] == 0
        assert row["reward_by_task"][UNSOLVED] == 0
        assert [task.split(".")[0] for task, _ in row["played"][1]] == ["alpha"] * 2 + ["beta"] * 2
    text = tables.save(found, tmp_path, "benchmark")
    assert "| **in_context** | in_context | 2.33 ± 0.00 | +0.33 ± 0.00 | 2.00 |" in text


def _domain(options):
    config = config_lib.default()
    for name, value in options.items():
        section, _, option = name.partition("__")
        config[section][option] = value
    return domains.make_evaluated(config)
