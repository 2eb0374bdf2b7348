# SPDX-License-Identifier: Apache-2.0
"""What it costs to know: stock and patched vLLM side by side, as ratios.

Each benchmark is a command, `python -m benchmarks.NAME`, and writes
`docs/performance/NAME.json`; `python -m benchmarks.page` makes the plots and the
tables of `docs/performance.md` of them. `make bench` does all of it.

What imports vLLM is in `on_tree/` and runs in processes of its own, one for each
tree (`workers`). What is measured in turns goes through `pairs`.
"""
