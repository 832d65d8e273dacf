"""A report of runs as a static site: tables and figures beside the published ones, and a browser
of rollouts. `python -m rime_jax.report RUN [RUN ...]`; docs/report.md."""
