# SPDX-License-Identifier: Apache-2.0
"""The side of a benchmark that imports vLLM; see `benchmarks.workers`."""
