# SPDX-License-Identifier: Apache-2.0
"""What the user may have meant: the closest of the known words, for error messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from configs.errors import InputError


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the entry of `known` most like `word`, of those that begin or end with it if any, or None."""
    by_folded: dict[str, str] = {}
    for entry in known:
        by_folded.setdefault(entry.casefold(), entry)
    folded = word.casefold()
    longer = [entry for entry in by_folded if entry.startswith(folded)]
    longer = longer or [entry for entry in by_folded if entry.endswith(f"_{folded}")]
    matches = get_close_matches(folded, longer or list(by_folded), n=3, cutoff=0.4 if longer else 0.61)
    # Two letters that change places leave the letters as they are.
    same = (entry for entry in matches if sorted(entry) == sorted(folded))
    return by_folded[next(same, matches[0])] if matches else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the cure for an unknown `word`: the closest known entry, if any, and the list of all."""
    if not (entries := list(known)):
        return f"remove '{word}'"
    match, listing = closest(word, entries), ", ".join(entries)
    if len(entries) == 1:
        return f"use '{listing}'"
    return f"use '{match}' (known: {listing})" if match else f"use one of {listing}"


def path_suggestion(path: str, known: Collection[str]) -> str:
    """The cure for an unknown dotted `path`: its name in another group, or what is alike in its own."""
    group, _, name = path.rpartition(".")
    in_group = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == group}
    same_name = [each for each in known if each.rpartition(".")[2] == name]
    if len(same_name) == 1:
        return f"use '{same_name[0]}'"
    if group and in_group:
        match = closest(name, in_group)
        return f"use '{in_group[match]}'" if match else f"use one of {', '.join(in_group.values())}"
    if of_group := [each for each in known if each.startswith(f"{path}.")]:
        return f"'{path}' is a group: use one of its parameters, e.g. '{of_group[0]}'"
    if (match := closest(path, same_name or known)) is not None:
        return f"use '{match}'"
    example = next((each for each in known if "." in each), path)
    groups = ", ".join(dict.fromkeys(each.partition(".")[0] for each in known))
    return f"use a full name, e.g. '{example}'; the groups are {groups}"


def check_known(
    word: str,
    known: Collection[str],
    message: str,
    where: str | None = None,
    *,
    error: type[InputError] = InputError,
) -> None:
    """Raise an error with this message, its cure the closest of the `known` words, unless `word` is one."""
    if word not in known:
        raise error(message, where=where, cure=suggestion(word, known))
