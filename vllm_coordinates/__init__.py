# SPDX-License-Identifier: Apache-2.0
"""Session coordinates for vLLM's KV-cache events: the patch tool and the stream kit."""
