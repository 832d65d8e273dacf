"""For MkDocs: pages that lie elsewhere in the repository become pages of the site.

They keep links that work where they lie, on a code host; here those links are turned towards the
site. A link to a file that is no page becomes its name.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
# Page of the site → file in the repository.
ELSEWHERE = {
    "index.md": "README.md", "architecture.md": "ARCHITECTURE.md",
    "experiments.md": "experiments/README.md", "benchmarks.md": "benchmarks/README.md",
    "launch.md": "launch/README.md",
}
_PAGES = {source: page for page, source in ELSEWHERE.items()}


def on_files(files, config):
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, **_):
    source = ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    folder = posixpath.dirname(source)

    def turned(found):
        text, target = found[1], found[2]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash_, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if path in _PAGES:
            return f"[{text}]({_PAGES[path]}{hash_}{anchor})"
        if path.startswith("docs/") and (ROOT / path).is_file():
            return f"[{text}]({path.removeprefix('docs/')}{hash_}{anchor})"
        return f"{text} (`{path}`)" if text != path else f"`{path}`"

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", turned, markdown)
