"""The commands of the pages, run: pytest -m docs_commands. How: docs_commands/table.py."""

import pytest

from tests.docs_commands import pages, table, workspace

COMMANDS = {command.text: command for page in pages.PAGES for command in pages.commands(page)}
RUN = [command for command in table.ROWS if not table.ROWS[command].left_out]


def test_a_command_is_read_as_a_shell_reads_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("""# A page
```bash
# A comment.
export A=1 B='2 3'
python -m one --set \\
  x=1      # why
```
Then `python -m two  --x`, of the package `rime_jax`, or `python -m two`:

    launch/three.sh --y

```json
{"not": "a command"}
```
""")
    assert pages.commands(page) == [
        pages.Command("python -m one --set x=1", ("export A=1 B='2 3'",)),
        pages.Command("launch/three.sh --y"), pages.Command("python -m two --x")]


def test_every_command_of_a_page_has_a_row_and_every_row_is_in_a_page():
    missing, stale = COMMANDS.keys() - table.ROWS.keys(), table.ROWS.keys() - COMMANDS.keys()
    assert not missing, f"add to tests/docs_commands/table.py: {sorted(missing)}"
    assert not stale, f"no page has these any more: {sorted(stale)}"


def test_most_commands_are_run():
    assert len(RUN) >= 0.75 * len(table.ROWS)


@pytest.fixture(scope="module")
def place(tmp_path_factory, request):
    if "docs_commands" not in request.config.option.markexpr:
        pytest.skip("minutes: pytest -m docs_commands tests/test_docs_commands.py")
    return workspace.Workspace(tmp_path_factory.mktemp("docs"), table.ROWS, {
        text: command.set_up for text, command in COMMANDS.items()})


@pytest.mark.docs_commands
@pytest.mark.parametrize("command", RUN, ids=lambda command: command[:90])
def test_a_command_of_the_pages_does_what_they_say(place, command):
    place.run(command)
