"""What a cache policy is: a name, how far it looks ahead, and which native ranking it uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gids._native import PolicyKind
from gids.errors import ConfigError


@dataclass(frozen=True)
class Policy:
    """Decides which rows stay in the cache after a group of batches.

    The ranking itself is in ``kernels/policy_*.cuh``, one file a policy: it gives every resident row and every row just
    read a class, and the rows of the lowest classes stay.
    """

    name: ClassVar[str]
    kind: ClassVar[PolicyKind]

    @property
    def ahead(self) -> int | None:
        """Batches after the group that the policy wants to know; None is all that there are."""
        return 0

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class WindowedPolicy(Policy):
    """A policy that sees a fixed number of batches past the group.

    Attributes
    ----------
    size : int
        Batches to look ahead.
    """

    size: int = 16

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"window must not be negative (got {self.size})")

    @property
    def ahead(self) -> int | None:
        """The window."""
        return self.size

    def __str__(self) -> str:
        return f"{self.name}({self.size})"
