"""How each command of the pages is run in a test: the one place where it may differ from its page.

A command stands here as its page has it, on one line. `swap` replaces parts of it and `add` is put
behind it, to make it small or to name a thing of this machine; nothing else is changed. The
working directory is a copy of the checkout, the environment that of the tests.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Row:
    """One command.

    Attributes:
      command: as in the page.
      add: arguments put behind it.
      swap: parts of it, and what stands there instead.
      after: commands whose results it reads; they are run before.
      beside: a command that runs meanwhile.
      serves: what it prints once it serves; it is stopped then.
      leaves: files that it writes.
      needs: modules; `repositories`: made-up ones with tasks, and a sandbox; `episodes`: files.
      ports: names of free ports; "{name}" in `swap` and `add` is one.
      statuses: with which it may end.
      left_out: why it is not run at all.
    """

    command: str
    add: str = ""
    swap: Mapping[str, str] = dataclasses.field(default_factory=dict)
    after: tuple[str, ...] = ()
    beside: str = ""
    serves: str = ""
    leaves: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (0,)
    left_out: str = ""


def _left_out(reason: str, *commands: str) -> list[Row]:
    return [Row(command, left_out=reason) for command in commands]


_SMALL = ("--set steps=1 rollout.streams_per_step=2 rollout.group_size=2 eval.streams=2 "
          "eval.rollouts=1 eval.bootstrap=100")
_FEW = "--set eval.streams=2 eval.rollouts=1 eval.bootstrap=100"
_PAIR = _SMALL + " run_dir=runs/pair"
# The made-up repositories, for the untrained policy of bytes.
_REPAIRS = ("--set env.tasks_file=tasks.jsonl env.libraries_file=libraries.json "
            "env.cache_dir=cache steps=1")
_MAIN = "launch/local.sh"
_COVERAGE = "launch/test.sh --coverage tests/learner"
_UNTRAINED = "launch/local.sh --config=experiments/alchemy/writer_untrained.py"
_SINGLE = "launch/local.sh --config=experiments/alchemy/FILE.py"
_CODEBASE = ("python -m rime_jax.train --config=experiments/codebase/rime.py --set "
             "env.tasks_file=tasks.jsonl env.libraries_file=libraries.json")
_LEVELS = ("python -m rime_jax.levels_codebase --config=experiments/codebase/rime.py "
           "--out=levels.json --samples=4")
_JUDGE = "launch/judge_server.sh lexical --config=FILE"
_CHAT = "launch/judge_server.sh DIRECTORY"
_PROCESS = ("python -m rime_jax.train --config=... --coordinator host0:8476 --processes 2 "
            "--process ")
_THREE = tuple(f"python -m rime_jax.train --config=experiments/alchemy/{name}.py:tiny"
               for name in ("writer_untrained", "exploration_off", "actor_only"))

_HERE = [
    # README.md
    Row(_MAIN, _SMALL, leaves=("runs/rime_tiny/eval/final.md",)),
    Row("launch/test.sh", "tests/test_memory.py -q", needs=("hypothesis",)),
    Row("python -m rime_jax.train --config=FILE [--set OPTION=VALUE ...]",
        swap={"FILE": "experiments/alchemy/cod.py:tiny", "[--set OPTION=VALUE ...]": _SMALL},
        leaves=("runs/cod_tiny/eval/final.md",)),
    Row("python -m rime_jax.evaluate --run=runs/rime_tiny", after=(_MAIN,),
        leaves=("runs/rime_tiny/eval/step_1.md",)),
    Row("python -m rime_jax.evaluate --config=FILE", _FEW,
        swap={"FILE": "experiments/alchemy/values_shown.py:tiny"}),
    Row("python -m rime_jax.report RUN...", "--out=one", swap={"RUN...": "runs/rime_tiny"},
        after=(_MAIN,), leaves=("one/index.html",), needs=("plotly",)),
    Row("launch/sweep.py 'experiments/alchemy/*.py:tiny,steps=3'", "--dry-run"),
    Row("python -m rime_jax.warm_start --config=experiments/alchemy/models/warm_start.py --out=DIR",
        "--set warm_start.steps=4 warm_start.sequences=4", swap={"DIR": "warm"},
        leaves=("warm/model.safetensors",)),
    Row("python -m rime_jax.plot RUN... --out=FILE.png",
        swap={"RUN...": "runs/rime_tiny", "FILE": "one"}, after=(_MAIN,), leaves=("one.png",),
        needs=("matplotlib",)),
    Row(".venv/bin/tensorboard --logdir runs", "--port {board}",
        swap={".venv/bin/": ""}, after=(_MAIN,), serves="http://localhost:", ports=("board",)),
    Row(_UNTRAINED, _SMALL, leaves=("runs/writer_untrained_tiny/eval/final.json",)),
    Row("python -m rime_jax.plot runs/rime_tiny runs/writer_untrained_tiny --out docs/curves.png",
        after=(_MAIN, _UNTRAINED), leaves=("docs/curves.png",), needs=("matplotlib",)),
    Row("launch/local.sh --config=experiments/alchemy/FILE", _SMALL,
        swap={"FILE": "skillrise.py"}, leaves=("runs/skillrise_tiny/eval/final.md",)),
    # CONTRIBUTING.md
    Row("launch/test.sh -k memory", "tests/test_memory.py -q", needs=("hypothesis",)),
    Row(_COVERAGE, "-q", swap={"tests/learner": "tests/test_memory.py"}, leaves=(".coverage",),
        needs=("coverage", "hypothesis")),
    Row(".venv/bin/python -m coverage report --show-missing --include='rime_jax/learner/*'",
        swap={"learner/*": "memory.py"}, after=(_COVERAGE,), needs=("coverage",)),
    # 1: something of this machine is to be fixed, which it says.
    Row(".venv/bin/python -m rime_jax.doctor", statuses=(0, 1)),
    Row(".venv/bin/python -m mypy", needs=("mypy",)),
    Row("RIME_GOLDEN=write launch/test.sh tests/test_launch*", "-q",
        swap={"tests/test_launch*": "tests/test_launch_gke.py"}),
    # docs/codebase.md
    Row("python -m rime_jax.envs.codebase.prepare",
        "--tasks=tasks.jsonl --libraries=libraries.json --cache-dir=cache",
        needs=("repositories",)),
    Row("python -m rime_jax.train --config=experiments/codebase/rime.py:tiny", _REPAIRS,
        needs=("repositories",), leaves=("runs/codebase_rime_tiny/eval/final.md",)),
    Row(_LEVELS, _REPAIRS, swap={"rime.py": "rime.py:tiny", "--samples=4": "--samples=1"},
        needs=("repositories",), leaves=("levels.json",)),
    Row("python -m rime_jax.train --config=experiments/codebase/rime.py --set "
        "env.levels_file=levels.json", _REPAIRS + " run_dir=runs/levels",
        swap={"rime.py": "rime.py:tiny"}, after=(_LEVELS,), needs=("repositories",)),
    Row("python -m rime_jax.envs.codebase.prepare --tasks=tasks.jsonl --libraries=libraries.json "
        "--validate", "--cache-dir=cache", needs=("repositories",)),
    Row(_CODEBASE, "env.cache_dir=cache steps=1 run_dir=runs/codebase_rime",
        swap={"rime.py": "rime.py:tiny"}, needs=("repositories",)),
    Row("python -m pytest tests/envs/codebase/test_streams.py", "-q", needs=("hypothesis",)),
    # docs/configuration.md
    Row("python -m rime_jax.config_page > docs/configuration.md",
        leaves=("docs/configuration.md",)),
    # docs/curves.md
    Row("tensorboard --logdir runs", "--port {board}", after=(_MAIN,),
        serves="http://localhost:", ports=("board",)),
    # docs/evaluation.md
    Row("python -m rime_jax.evaluate --config=experiments/alchemy/rime.py:tiny", _FEW),
    Row("python -m rime_jax.evaluate --config=experiments/alchemy/benchmark_rules.py:tiny --set "
        "env.edges=7 eval.streams=20", _FEW),
    Row("python -m rime_jax.evaluate --config=experiments/alchemy/benchmark_rules.py:tiny --set "
        "eval.tasks_file=episodes.jsonl eval.streams=20", _FEW + " --out=evaluated/file",
        needs=("episodes",)),
    Row("python -m rime_jax.evaluate --config=experiments/alchemy/benchmark_rules.py:tiny --set "
        "env.episodes_file=episodes.jsonl env.split_file=split.json eval.streams=20",
        _FEW + " --out=evaluated/split", needs=("episodes",)),
    Row("python -m rime_jax.evaluate --config=experiments/alchemy/rime.py:tiny --set "
        "env.trials=30 eval.streams=20", _FEW + " --out=evaluated/long",
        swap={"env.trials=30": "env.trials=8"}),
    Row("python -m rime_jax.evaluate --run=RUN --set eval.protocol=runs "
        "eval.scaffolds=act_write,in_context eval.baseline_samples=4 "
        "eval.tasks_file=benchmark.jsonl eval.libraries_file=libraries.json",
        "eval.runs=2 --out=evaluated/benchmark",
        swap={"RUN": "runs/codebase_rime", "baseline_samples=4": "baseline_samples=1"},
        after=(_CODEBASE,), needs=("repositories",)),
    Row("python -m rime_jax.evaluate --config=experiments/codebase/rime.py:tiny --set "
        "eval.protocol=runs eval.runs=2 eval.scaffolds=act_write,in_context",
        _REPAIRS + " --out=evaluated/runs", needs=("repositories",)),
    Row("python -m rime_jax.evaluate --config=experiments/codebase/rime.py:tiny --set "
        "eval.protocol=runs eval.runs=2 env.segments=13+13 env.trials=26",
        _REPAIRS + " --out=evaluated/runs_long",
        swap={"env.segments=13+13 env.trials=26": "env.segments=4+4 env.trials=8"},
        needs=("repositories",)),
    Row("python -m rime_jax.evaluate --run=runs/rime_tiny --set "
        "eval.interventions=blanked,swapped,corrupted", "--out=evaluated/interventions",
        after=(_MAIN,)),
    Row("python -m rime_jax.evaluate --run=runs/rime_tiny --writer=initial", after=(_MAIN,)),
    Row("python -m rime_jax.evaluate --config=experiments/alchemy/rime.py:tiny "
        "--actor=runs/rime_tiny/checkpoints/100", _FEW,
        swap={"checkpoints/100": "checkpoints/1"}, after=(_MAIN,)),
    Row("python -m rime_jax.evaluate --run=runs/rime_tiny "
        "--writer=http://127.0.0.1:8000/v1#MODEL", "--set rollout.writer_context=fresh",
        swap={"8000": "{chat}", "MODEL": "tiny-alchemy-v1"}, after=(_MAIN,), beside=_CHAT,
        ports=("chat",)),
    Row("python -m rime_jax.evaluation.compare runs/writer_untrained_tiny/eval/final.json "
        "runs/rime_tiny/eval/final.json --policies 'step 100' 'step 100'",
        swap={"'step 100' 'step 100'": "'step 1' 'step 1'"}, after=(_MAIN, _UNTRAINED)),
    # docs/judge.md
    Row(_JUDGE, swap={"launch/judge_server.sh": "launch/judge_server.sh --port {judge}",
                      "FILE": "experiments/alchemy/rime.py:tiny"},
        serves="ready: judge.urls=", ports=("judge",)),
    Row(_CHAT, swap={"launch/judge_server.sh": "launch/judge_server.sh --port {chat}",
                     "DIRECTORY": "rime_jax/assets/tiny-alchemy-v1"},
        serves="ready: judge.urls=", ports=("chat",)),
    Row("python -m rime_jax.train --config=... --set judge.kind=server "
        "judge.urls=http://127.0.0.1:8100/v1 judge.model=Qwen3-30B-A3B-Instruct-2507",
        _SMALL + " run_dir=runs/judged",
        swap={"--config=...": "--config=experiments/alchemy/rime.py:tiny", "8100": "{judge}",
              "Qwen3-30B-A3B-Instruct-2507": "lexical"}, beside=_JUDGE, ports=("judge",)),
    Row("launch/judge_server.sh --vllm Qwen/Qwen3-30B-A3B-Instruct-2507 --tensor-parallel-size 2",
        swap={"--vllm": "--dry-run --vllm"}),
    Row("launch/judge_server.sh --vllm MODEL", swap={"--vllm": "--dry-run --vllm"}),
    Row("launch/judge_server.sh MODEL", swap={"MODEL": "--dry-run lexical"}),
    # docs/new_environment.md
    Row("python -m rime_jax.train --config=examples/lockbox.py --set steps=3",
        "rollout.group_size=2 eval.streams=2 eval.rollouts=1 eval.bootstrap=100",
        leaves=("runs/lockbox/eval/final.md",)),
    # docs/report.md
    Row("python -m rime_jax.report runs/rime_tiny runs/writer_untrained_tiny", "--out=two",
        after=(_MAIN, _UNTRAINED), leaves=("two/index.html",), needs=("plotly",)),
    Row("python -m rime_jax.train --config=experiments/alchemy/rime.py:tiny", _SMALL,
        after=(_MAIN,)),
    *(Row(command, _SMALL) for command in _THREE),
    Row("for run in rime writer_untrained exploration_off actor_only; do python -m "
        "rime_jax.evaluate --run=runs/${run}_tiny; done", after=(_MAIN, *_THREE)),
    Row("python -m docs.report.screenshots "
        "runs/{rime,writer_untrained,exploration_off,actor_only}_tiny", after=(_MAIN, *_THREE),
        needs=("playwright", "plotly")),
    # docs/several_processes.md
    Row(_PROCESS + "0", _PAIR, swap={"--config=...": "--config=experiments/alchemy/rime.py:tiny",
                                     "host0:8476": "127.0.0.1:{hosts}"},
        beside=_PROCESS + "1", ports=("hosts",), leaves=("runs/pair/eval/final.md",)),
    Row(_PROCESS + "1", _PAIR, swap={"--config=...": "--config=experiments/alchemy/rime.py:tiny",
                                     "host0:8476": "127.0.0.1:{hosts}"},
        beside=_PROCESS + "0", ports=("hosts",)),
    # docs/smollm_transcript.md
    Row("python -m rime_jax.transcript --config=experiments/alchemy/models/smollm.py "
        "--out=docs/smollm_transcript.md", "--set eval.streams=2",
        swap={"models/smollm.py": "rime.py:tiny"}, leaves=("docs/smollm_transcript.md",)),
    # docs/study.md
    Row("launch/study.sh --quick", "--dry-run"),
    Row("launch/study.sh --settings eased --cells rime,actor_only", "--dry-run"),
    Row("launch/study.sh", "--dry-run"),
    Row("python -m rime_jax.study.results runs/study --into docs/study/results.json",
        leaves=("docs/study/results.json",)),
    Row("python -m rime_jax.study.page", leaves=("docs/study.md",), needs=("matplotlib",)),
    # docs/troubleshooting.md
    Row("launch/until_done.sh COMMAND", swap={"COMMAND": "true"}),
    # docs/vllm.md
    Row("launch/vllm_server.sh --port 8000 path/to/model --max-model-len 20480",
        swap={"path/to/model": "--dry-run rime_jax/assets/tiny-alchemy-v1"}),
    Row("python -m rime_jax.evaluate --config=experiments/alchemy/rime.py --out=eval/some_model "
        "--set sampler.kind=openai sampler.urls=https://SERVICE/v1 sampler.openai_model=NAME "
        "sampler.openai_tokens=2000000 model.path=DIRECTORY", _FEW,
        swap={"rime.py": "rime.py:tiny", "https://SERVICE": "http://127.0.0.1:{chat}",
              "NAME": "tiny-alchemy-v1", "model.path=DIRECTORY": ""},
        beside=_CHAT, ports=("chat",), leaves=("eval/some_model.md",)),
    # experiments/README.md
    Row(_SINGLE, _SMALL, swap={"FILE": "single_task"},
        leaves=("runs/single_task_tiny/eval/final.md",)),
    Row("launch/sweep.py 'experiments/alchemy/*.py:tiny' --seeds 0,1,2", "--dry-run"),
    Row("launch/sweep.py --help"),
    Row("python -m rime_jax.train --config=experiments/codebase/FILE.py --set "
        "@launch/presets/codebase-v5p-64.txt model.path=DIRECTORY",
        _REPAIRS + " run_dir=runs/preset",
        swap={"FILE.py": "actor_only.py:tiny", "@launch/presets/codebase-v5p-64.txt": "",
              "model.path=DIRECTORY": "model.path=rime_jax/assets/tiny-bytes-v1"},
        needs=("repositories",)),
    Row("python -m rime_jax.evaluate --config=experiments/alchemy/rime.py:tiny "
        "--actor=runs/single_task_tiny --set eval.scaffolds=act_write,in_context "
        "--out=runs/single_task_tiny/eval/streams", _FEW, after=(_SINGLE,),
        leaves=("runs/single_task_tiny/eval/streams.md",)),
    Row("python -m rime_jax.evaluate --run=runs/codebase_rime --set eval.protocol=runs "
        "eval.baseline_samples=4 eval.tasks_file=benchmark.jsonl "
        "eval.libraries_file=libraries.json", "eval.runs=2",
        swap={"baseline_samples=4": "baseline_samples=1"}, after=(_CODEBASE,),
        needs=("repositories",)),
    Row("python -m rime_jax.evaluate --run=runs/codebase_rime --set eval.protocol=runs "
        "env.segments=13+13 env.trials=26 --out=runs/codebase_rime/eval/long_13_13",
        "--set eval.runs=2",
        swap={"env.segments=13+13 env.trials=26": "env.segments=4+4 env.trials=8"},
        after=(_CODEBASE,), needs=("repositories",)),
    # launch/README.md
    Row("launch/until_done.sh launch/local.sh --set steps=1000", _SMALL + " run_dir=runs/until",
        swap={"steps=1000": "steps=1"}, leaves=("runs/until/eval/final.md",)),
    Row("python -m rime_jax.doctor --config=experiments/alchemy/rime.py:tiny", statuses=(0, 1)),
    Row("launch/tpu_pod.sh --spot --config=experiments/alchemy/rime.py --set "
        "@launch/presets/qwen3-4b-v5e-16.txt model.path=/shared/Qwen3-4B-Instruct-2507",
        swap={"--spot": "--dry-run --spot"}),
    Row("launch/tpu_pod.sh --logs 3", swap={"--logs": "--dry-run --logs"}),
    Row("launch/tpu_pod.sh --delete", swap={"--delete": "--dry-run --delete"}),
    Row("launch/slurm/submit.sh --nodes 2 --servers 1 --model /shared/Qwen3-4B-Instruct-2507 "
        "--judge /shared/Qwen3-30B-A3B-Instruct-2507 --sbatch --partition=gpu "
        "--sbatch --time=24:00:00 --config=experiments/alchemy/rime.py",
        swap={"--nodes 2": "--dry-run --nodes 2",
              "/shared/Qwen3-4B-Instruct-2507": "rime_jax/assets/tiny-alchemy-v1",
              "/shared/Qwen3-30B-A3B-Instruct-2507": "rime_jax/assets/tiny-bytes-v1"}),
    Row("launch/gke/submit.sh --config=experiments/alchemy/rime.py --set "
        "@launch/presets/qwen3-4b-v5e-16.txt",
        swap={"submit.sh": "submit.sh --dry-run"}),
    # docs/credit.md
    Row("launch/sweep.py experiments/alchemy/rime.py:tiny "
        "experiments/alchemy/writer_untrained.py:tiny "
        "experiments/alchemy/exploration_off.py:tiny experiments/alchemy/actor_only.py:tiny "
        "--seeds 0,1,2 --out runs/w0", "--dry-run"),
    Row("python -m rime_jax.warm_start --config=experiments/alchemy/models/warm_start.py "
        "--out=runs/warm/w1 --set seed=1", "warm_start.steps=4 warm_start.sequences=4",
        leaves=("runs/warm/w1/model.safetensors",)),
    Row("launch/sweep.py experiments/alchemy/baseline_fitted.py:tiny "
        "experiments/alchemy/baseline_none.py:tiny --seeds 0,1,2 --out runs/w0", "--dry-run"),
]

_NOT_HERE = [
    *_left_out(
        "installs from the package index", "pip install pre-commit && pre-commit install",
        "pip install -e '.[plot]'", "pip install 'rime_jax[report]'", "pip install playwright",
        "pip install 'rime_jax[aot]'", "launch/install.sh gpu"),
    *_left_out("is this test", "launch/test.sh -m docs_commands"),
    *_left_out("installs its tools from the package index; the tests run the same ones",
               "pre-commit run --all-files"),
    *_left_out("changes the machine as root", "apt install bubblewrap"),
    *_left_out("shows the size of a cache that the network fills",
               "du -sh ~/.cache/rime_jax/codebase"),
    *_left_out("fetches 530 MB; runs as it is where RIME_NETWORK=1",
               "RIME_NETWORK=1 python -m pytest tests/envs/codebase/test_shipped.py -s"),
    *_left_out("needs vLLM; tests/vllm are these programs with it", "launch/setup_vllm.sh",
               "RIME_VLLM_PYTHON=.venv-vllm/bin/python python -m pytest tests/vllm",
               "python -m rime_jax.train --config=... --set sampler.kind=vllm "
               "sampler.urls=http://127.0.0.1:8000,http://127.0.0.1:8001"),
    *_left_out("asks a cluster; a real one is needed",
               "python -m rime_jax.train --config=experiments/alchemy/rime.py --coordinator auto",
               "srun --ntasks-per-node=8"),
    *_left_out("reads the hours of training that the page names before it",
               "python -m benchmarks.credit runs/w0/rime_tiny_seed0 runs/w0/rime_tiny_seed1",
               "python -m benchmarks.credit_runs rime_tiny baseline_fitted_tiny runs/w0 runs/w1",
               "python -m benchmarks.credit_runs rime_tiny skillrise_tiny runs/w0 runs/w1"),
    *_left_out("needs a TPU slice; tests/aot compile the preset for one",
               "python -m rime_jax.train --config=experiments/alchemy/rime.py --set "
               "@launch/presets/qwen3-4b-v5e-16.txt model.path=/models/Qwen3-4B-Instruct-2507"),
    *_left_out("minutes of compilation each, with libtpu; the last of them runs the others",
               "python -m rime_jax.aot --config=experiments/codebase/rime.py "
               "--topology=v5p:4x4x4 --set @launch/presets/codebase-v5p-64.txt",
               "python -m rime_jax.aot --config=experiments/codebase/rime.py "
               "--topology=v6e:8x8 --set @launch/presets/codebase-v6e-64.txt",
               "python -m rime_jax.aot --config=experiments/alchemy/rime.py --topology=v5e:4x4 "
               "--set @launch/presets/qwen3-4b-v5e-16.txt",
               "python -m rime_jax.aot --config=experiments/alchemy/rime.py --topology=v5e:4x4 "
               "--set @launch/presets/qwen3-4b-v5e-16.txt --search=v5e.jsonl "
               "--meshes=1x16x1,2x8x1,1x8x2,1x4x4 --rows=4,8,16 "
               "--remats=layer,attention,matmuls",
               "python -m pytest -m aot tests/aot --basetemp=DIR"),
]

ROWS = {row.command: row for row in [*_HERE, *_NOT_HERE]}
