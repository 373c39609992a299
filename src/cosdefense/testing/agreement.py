"""The conditions of `check_restoring`, and what a defense promises under them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Agreement:
    """When the honest clients of a round agree, and what a defense then promises.

    The conditions, on the trainable coordinates:

    * The round has `n_clients` clients; at most `n_malicious` of them, less than half, are malicious and send any
      finite numbers.
    * Any two honest updates have a cosine of at least `min_cosine`.
    * The longest honest update is at most `max_norm_ratio` times as long as the shortest.
    * The defense remembers any earlier rounds: with any share of malicious clients, and with honest updates that
      agree or not, in any direction, up to `max_growth` times shorter or longer than those of this round. There are
      at most `max_history` such rounds, because a running average that is moved for longer may end anywhere.

    The promise: ⟨combined update, honest mean⟩ ≥ min_progress · ‖honest mean‖². A skipped round has a progress of 0.

    Args:
        n_clients: How many clients take part in the round.
        n_malicious: How many of them are malicious at most. None: as many as are less than half.
        min_cosine: The least cosine between two honest updates.
        max_norm_ratio: The longest honest norm divided by the shortest.
        max_growth: How much longer or shorter the honest updates of earlier rounds are at most.
        max_history: The number of earlier rounds at most. 0: the defense is in its first round.
        min_progress: The least progress along the honest mean, in norms of it.
    """

    n_clients: int = 10
    n_malicious: int | None = None
    min_cosine: float = 0.8
    max_norm_ratio: float = 1.5
    max_growth: float = 10.0
    max_history: int = 16
    min_progress: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < 2 * self.largest_minority < self.n_clients:
            raise ValueError(
                f"Agreement.n_malicious must be at least 1 and less than half of {self.n_clients} clients, "
                f"got {self.n_malicious}"
            )
        if not 0 < self.min_cosine <= 1:
            raise ValueError(f"Agreement.min_cosine must be in (0, 1], got {self.min_cosine}")
        for name in ("max_norm_ratio", "max_growth"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"Agreement.{name} must be at least 1, got {getattr(self, name)}")
        if self.max_history < 0:
            raise ValueError(f"Agreement.max_history must be at least 0, got {self.max_history}")

    @property
    def largest_minority(self) -> int:
        return (self.n_clients - 1) // 2 if self.n_malicious is None else self.n_malicious
