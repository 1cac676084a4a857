"""Where the operands of a measured kernel lie in L1."""

from __future__ import annotations

WORD_BYTES = 4


def placed(*sizes_bytes: int, base: int = 0) -> tuple[int, ...]:
    """Addresses of arrays one after another from `base`, each on a word, and the first free byte after them.

    The measured programs placed their operands in the order they are passed, without gaps. Where the first
    one began is not known; only the distances matter to cores that contend among themselves.
    """
    addresses = [base]
    for size_bytes in sizes_bytes:
        addresses.append(-(-(addresses[-1] + size_bytes) // WORD_BYTES) * WORD_BYTES)
    return tuple(addresses)
