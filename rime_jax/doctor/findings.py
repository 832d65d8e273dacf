"""What the doctor finds, as a table for people and for an issue."""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Literal

# bad: something that was asked for is missing. note: worth knowing, and nobody asked for it.
Verdict = Literal["ok", "note", "bad"]
_MARKS = {"ok": "ok  ", "note": "-   ", "bad": "FAIL"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
      section: what it belongs to, such as `devices`.
      name: what was looked at.
      verdict: see `Verdict`.
      said: what was found.
      remedy: what to do; empty where nothing is to be done.
    """

    section: str
    name: str
    verdict: Verdict
    said: str
    remedy: str = ""


def table(findings: Sequence[Finding]) -> str:
    """One line a finding, its remedy below it; nothing in it is secret (`without_secrets`)."""
    lines, section = [], None
    width = max((len(f.name) for f in findings), default=0)
    for finding in findings:
        if finding.section != section:
            lines += ["" if lines else None, finding.section]
            section = finding.section
        lines.append(f"  {_MARKS[finding.verdict]}  {finding.name:{width}}  {finding.said}")
        if finding.remedy:
            lines.append(f"        {'':{width}}  → {finding.remedy}")
    return without_secrets("\n".join(line.rstrip() for line in lines if line is not None))


def without_secrets(text: str) -> str:
    """Without names, passwords and query strings in addresses, and without the home directory.

    Values of environment variables that hold keys never get here in the first place.
    """
    text = re.sub(r"(\w+://)[^\s/@]+@", r"\1…@", text)
    text = re.sub(r"(\w+://[^\s?#;,'\"]+)\?[^\s;,'\"]*", r"\1?…", text)
    home = os.path.expanduser("~")
    if home != "/":
        text = re.sub(re.escape(home) + r"(?=/|\b)", "~", text)
    return text
