# SPDX-License-Identifier: Apache-2.0
"""The consumer kit: wire -> subscriber -> index -> view (docs/consumers.md).

Each module imports only those before it:

    wire        a frame's bytes to typed events
    sequence    one publisher's frames to ordered deliveries: gaps, restarts
    subscriber  sockets, live and replay; sources: what a server says of its own
    index       deliveries to residency, of what hashes and claims keep
    board       an index and its streams, as rows; watch and page draw them

`mint` makes continuation ids of content and `ancestry` knows how they relate;
`record` and `verify` keep and check a stream; `commands` and `cli` are on top.
"""
