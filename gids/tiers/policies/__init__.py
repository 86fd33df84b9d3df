"""Cache policies, one a file."""

from __future__ import annotations

import re

from gids.errors import ConfigError
from gids.tiers.policies.base import Policy, WindowedPolicy
from gids.tiers.policies.belady import Belady
from gids.tiers.policies.gids import Gids
from gids.tiers.policies.lru import Lru
from gids.tiers.policies.random import Random
from gids.tiers.policies.sieve import Sieve
from gids.tiers.policies.window import Window

POLICIES: dict[str, type[Policy]] = {p.name: p for p in (Random, Lru, Sieve, Gids, Window, Belady)}


def parse_policy(policy: str | Policy, window: int | None = None) -> Policy:
    """Turn ``"window(16)"``, ``"window"``, ``"lru"``, ... or a :class:`Policy` into a policy.

    Parameters
    ----------
    policy : str or Policy
        A name of :data:`POLICIES`, with the window in brackets where it has one.
    window : int, optional
        Batches to look ahead, for ``window`` and ``gids`` when the name says none.
    """
    if isinstance(policy, Policy):
        return policy
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*", policy)
    if match is None or match[1] not in POLICIES:
        raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, e.g. 'window(16)' (got {policy!r})")
    kind = POLICIES[match[1]]
    size = int(match[2]) if match[2] else window
    if issubclass(kind, WindowedPolicy):
        return kind() if size is None else kind(size)
    if match[2]:
        raise ConfigError(f"policy {match[1]} takes no window (got {policy!r})")
    return kind()


__all__ = ["POLICIES", "Belady", "Gids", "Lru", "Policy", "Random", "Sieve", "Window", "parse_policy"]
