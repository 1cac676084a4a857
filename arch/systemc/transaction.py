# SPDX-License-Identifier: Apache-2.0
"""The payload that travels through ports, after the generic payload of SystemC TLM."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from arch.systemc.module import Body, Thread


class TxnCommand(Enum):
    """What a transaction asks its target to do."""

    READ = "read"
    WRITE = "write"


class Transaction(NamedTuple):
    """One access: `size_bytes` at byte `address` of the target, issued by the module with path `master`.

    `extension` carries what a memory-mapped access would encode in its words, e.g. a DMA command. Bytes of
    tensors do not travel here: the simulation moves tokens, and `arch.memories.effects` moves the numbers at
    the same instants.
    """

    command: TxnCommand
    address: int
    size_bytes: int
    master: str
    extension: object = None


class Target(Protocol):
    """Anything that serves transactions (sc_export with b_transport)."""

    def transport(self, txn: Transaction, thread: Thread) -> Body:
        """Serve `txn`; the generator ends when the access has ended. `thread` is the one that is blocked."""
