"""The study of docs/study.md: what is run, what came out, and the tables of it."""
