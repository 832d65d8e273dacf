"""The pages: their links lead somewhere, and their commands are ones that the programs take."""

import functools
import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from rime_jax import config as config_lib
from rime_jax import experiment

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md"),
                *ROOT.glob("benchmarks/*.md"), *ROOT.glob("launch/**/*.md")])
OPTIONS = dict(config_lib.options())
# What a reader fills in: FILE, RUN, DIRECTORY, …
_PLACE_HOLDER = re.compile(r"\b[A-Z]{3,}\b|\.\.\.|…")


_PASSES_ON = ("launch/local.sh", "launch/sweep.py", "launch/until_done.sh", "launch/detached.sh")


def label(value):
    return str(value.relative_to(ROOT)) if isinstance(value, pathlib.Path) else str(value)


def commands(page):
    """Lines of the fenced blocks and inline code that start a program of ours, joined at `\\`."""
    text = page.read_text()
    blocks = re.findall(r"^```(?:bash|sh|)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    inline = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", inline)]
    for line in lines:
        line = line.split("  #")[0].split(" > ")[0].replace("[", "").replace("]", "").strip()
        line = re.sub(r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/|\.venv-smollm/bin/)?", "", line)
        if re.match(r"python -m (rime_jax|benchmarks)\b|launch/\w+\.(sh|py)\b", line):
            yield line


CASES = [(page, line) for page in PAGES for line in dict.fromkeys(commands(page))]


def test_the_pages_have_commands_to_check():
    assert len(CASES) > 30 and {p.name for p, _ in CASES} >= {"README.md", "scaling.md"}


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_relative_link_of_a_page_leads_to_a_file(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize(("page", "line"), CASES, ids=label)
def test_a_command_names_files_options_and_flags_that_exist(page, line):
    words = shlex.split(line.replace("...", "").replace("…", ""))
    program = words[2] if words[0] == "python" else words[0]
    if words[0] == "python":
        assert importlib.util.find_spec(program) is not None
    else:
        assert (ROOT / program).is_file()
    known = usage(program)
    for word in words[3 if words[0] == "python" else 1:]:
        flag = re.match(r"--[a-z][a-z-]*", word)
        if flag and known is not None:
            assert flag[0] in known, f"{program} has no {flag[0]}"
        option = re.match(r"(?:--set=)?([a-z_]+(?:\.[a-z_]+)*)=", word)
        if option and not word.startswith("--") and "=" in word:
            assert option[1] in OPTIONS, f"there is no option {option[1]}"
        file = re.match(r"(?:--config=)?((?:experiments|examples)/[^*]*\.py(?::.*)?)$", word)
        if file and not _PLACE_HOLDER.search(word):
            experiment.read(str(ROOT / file[1]))
        if word.startswith("@launch/"):
            assert (ROOT / word[1:]).is_file()


@functools.cache
def usage(program):
    """The source in which a program's flags stand; None where it takes those of others."""
    if program in _PASSES_ON:
        return None
    if program.startswith("launch/"):
        return (ROOT / program).read_text()
    spec = importlib.util.find_spec(program)
    package = spec.submodule_search_locations
    text = pathlib.Path(*(package[0], "__main__.py") if package else (spec.origin,)).read_text()
    for adds, flags in (("experiment.add_arguments", " --config --set"),
                        ("distributed.add_arguments", " --coordinator --processes --process")):
        if adds in text:
            text += flags
    return text


@pytest.mark.skipif(importlib.util.find_spec("material") is None,
                    reason="MkDocs is not installed (extra `docs`)")
def test_the_site_builds_and_every_link_in_it_leads_somewhere(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir",
                           str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    pages = {p.parent.name for p in (tmp_path / "site").glob("*/index.html")}
    assert {page.stem for page in ROOT.glob("docs/*.md")} <= pages
    for page in (tmp_path / "site").glob("**/*.html"):
        # Read without a network.
        assert not re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css)', page.read_text())
