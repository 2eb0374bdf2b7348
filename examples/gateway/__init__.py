# SPDX-License-Identifier: Apache-2.0
"""A gateway that sends sessions back to the replica that still holds their prefix.

    labels     what clients may not say is taken out, what the engine is to know minted
    usage      how long a prompt was, from what passes through
    lineage    which continuations continue which, and how long they are
    replicas   which servers live, and what their event streams say they hold
    routing    the one with the longest resident prefix; load as the tie-break
    picture    the sessions and where they are resident, for a person
    proxy      a request through all of these, and its answer back
    app        the HTTP surface; `serve` and `__main__` run it

It tokenizes nothing and knows nothing of block hashes: labels go in, spans of labels
come back. It is an example, to be read in one sitting. It does not authenticate, limit
or meter, and one process of it keeps one index. In production the same decisions belong
into what is there already: llm-d's or Dynamo's router, fed by this stream, or an
external processor beside Envoy; `docs/gateway.md` has what proxies must strip.
"""
