# SPDX-License-Identifier: Apache-2.0
"""A source with a place for every verb, and an edit of each."""

from semantic.cases import FILE, source
from vllm_coordinates.semantic import (
    add_argument,
    add_element,
    add_field,
    add_import,
    add_method,
    add_parameter,
    append_to,
    insert_after,
    insert_before,
    prepend_to,
    replace,
    replace_body,
    replace_condition,
)

STOCK = source(
    '''
    import os

    import wire


    class Courier:
        name: str

        def __init__(self, route=None):
            self.route = route

        def carry(self, parcel, weight=0):
            """Invented."""
            if parcel:
                wire.send(parcel, weight=weight)
            self.done = True

        def key(self):
            return hash((self.name, self.route))
    '''
)

CARRY = "Courier.carry"
SEND = "wire.send($$$)"
SEND_CALL = "wire.send(parcel, weight=weight)"

EDITS = {
    "insert_after": insert_after(FILE, CARRY, SEND, "log(parcel)"),
    "insert_before": insert_before(FILE, CARRY, SEND, "log(parcel)"),
    "replace": replace(FILE, CARRY, SEND_CALL, "wire.post(parcel)"),
    "replace_condition": replace_condition(FILE, CARRY, "parcel", "parcel.ready"),
    "replace_body": replace_body(FILE, CARRY, "return wire.post(parcel)"),
    "add_argument": add_argument(FILE, CARRY, SEND, "label=1"),
    "add_element": add_element(FILE, "Courier.key", "hash($INTO)", "self.label"),
    "add_import": add_import(FILE, "from wire.labels import Label"),
    "add_field": add_field(FILE, "Courier", "label: str | None = None"),
    "add_method": add_method(FILE, "Courier", "def label(self):\n    return 1"),
    "add_parameter": add_parameter(FILE, CARRY, "label=None"),
    "prepend_to": prepend_to(FILE, CARRY, "self.done = False"),
    "append_to": append_to(FILE, CARRY, "self.label = None"),
}
