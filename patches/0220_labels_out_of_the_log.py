# SPDX-License-Identifier: Apache-2.0
"""Keep labels out of the log of requests.

Why: a label may name a customer's session, and nobody but a consumer of the events
    needs it (the contract's trust: labels stay out of logs above debug).

Upstream: with --enable-log-requests the sampling parameters of each request are
    logged at INFO, and with them all of `vllm_xargs`.

Adds: those parameters are logged without the labels among them.

Drop when: vllm-project/vllm#48501 is in the supported release, and logs no labels.
"""

from vllm_coordinates.semantic import add_import, prepend_to

LOGGER = "vllm/entrypoints/serve/utils/request_logger.py"

EDITS = [
    add_import(
        LOGGER, "from vllm.entrypoints.generate.base.coordinates import without_labels"
    ),
    prepend_to(LOGGER, "RequestLogger.log_inputs", "params = without_labels(params)"),
]
