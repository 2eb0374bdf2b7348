# SPDX-License-Identifier: Apache-2.0
"""`python -m vllm_coordinates` is the command `vllm-coordinates`."""

from .cli import main

main()
