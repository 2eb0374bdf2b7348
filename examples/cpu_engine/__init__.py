# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine on a CPU: a tiny model, a server, and a demonstration."""
