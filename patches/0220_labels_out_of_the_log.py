# SPDX-License-Identifier: Apache-2.0
"""Keep labels out of the log of requests.

Why: a label may name a customer's session, and nobody but a consumer of the events
    needs it (the contract's trust: labels stay out of logs above debug).

Upstream: with --enable-log-requests the sampling parameters of each request are
    logged at INFO, and with them all of `vllm_xargs`. So is its body, at DEBUG from
    0.31.0 on, and at a level of one's choice from 0.33.0 on: there it is serialized
    whatever the level is, and a lone surrogate ends in a 400 that names no field. An
    engine that dies dumps the requests of its last step, parameters and all.

Adds: all three are without the labels in them.

Drop when: vllm-project/vllm#48501 is in the supported release, and logs no labels.
"""

from vllm_coordinates.semantic import add_import, prepend_to, replace

LOGGER = "vllm/entrypoints/serve/utils/request_logger.py"
DUMP = "vllm/v1/core/sched/output.py"

EDITS = [
    add_import(
        LOGGER,
        "from vllm.entrypoints.generate.base.coordinates import body_without_labels",
    ),
    add_import(LOGGER, "from vllm.v1.coordinates import without_labels"),
    prepend_to(LOGGER, "RequestLogger.log_inputs", "params = without_labels(params)"),
    prepend_to(
        LOGGER,
        "RequestLogger.log_request_body",
        "request = body_without_labels(request)",
        since="0.31.0",
    ),
    add_import(DUMP, "from vllm.v1.coordinates import without_labels"),
    replace(
        DUMP,
        "NewRequestData.anon_repr",
        "self.sampling_params",
        "without_labels(self.sampling_params)",
    ),
]
