"""The table of coverage, beside sums of its own."""

import hypothesis
from hypothesis import strategies as st

from tests import coverage_table

FILES = st.lists(st.tuples(st.sampled_from(["rime_jax", "rime_jax/a", "rime_jax/b"]),
                           st.integers(0, 900), st.integers(0, 900)).map(
    lambda file: (file[0], file[1] + file[2], file[2])))


@hypothesis.given(FILES)
def test_every_file_counts_once_in_its_package_and_once_in_the_total(files):
    _, *lines = coverage_table.table(files).splitlines()
    read = {line.split()[0]: [int(n) for n in line.split()[1:3]] for line in lines}
    packages = sorted({package for package, _, _ in files})
    assert list(read) == [*packages, "total"]
    for package in packages:
        of_it = [file for file in files if file[0] == package]
        assert read[package] == [sum(f[1] for f in of_it), sum(f[2] for f in of_it)]
    assert read["total"] == [sum(file[1] for file in files), sum(file[2] for file in files)]
