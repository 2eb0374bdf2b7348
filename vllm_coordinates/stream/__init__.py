# SPDX-License-Identifier: Apache-2.0
"""The consumer kit: wire -> subscriber -> index -> view (DESIGN, section 5).

Each module imports only those before it: `wire` (bytes to structs),
`subscriber` (sockets to ordered batches), `index` (batches to residency);
`mint` stands apart (content to continuation ids); `record`, `watch` and
`verify` are the commands on top.
"""
