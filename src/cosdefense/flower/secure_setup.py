"""Decides whether a server sees updates, and refuses settings that need to see them if it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flwr.serverapp.strategy import Strategy

from ..core import Defense, TrustedData
from .strategy_inputs import StrategyMetrics
from .strategy_state import describe_strategy

if TYPE_CHECKING:  # they need the extra "secure"
    from ..secure.leader import HelperLink
    from .secure_leader import SecureLeader


def build_leader(
    defense: Defense,
    helper: HelperLink | None,
    run_config: Mapping[str, object] | None,
    strategy: Strategy,
    weigh_by_examples: bool,
    trusted_data: TrustedData | None,
) -> SecureLeader | None:
    """For a defense that hides updates. Refuses what needs to see them."""
    if not defense.hides_updates:
        if helper is not None or run_config is not None:
            raise ValueError("helper and run_config are for secure aggregation: pass Secure(…), from cosdefense.secure")
        return None
    from ..secure import Secure

    name = type(defense).__name__
    if helper is None:
        raise ValueError(f"Defended sees every update, and {name} must not: pass helper=RemoteHelper(…)")
    if run_config is None:
        raise ValueError(f"{name} needs run_config=context.run_config: every node compares it with its own")
    if not defense.options["encrypted"]:
        raise ValueError(f"{name}.plain is for simulations: clients would send what they must hide")
    if isinstance(defense, Secure) and defense.compares and getattr(helper, "triples", None) is None:
        raise ValueError(f"{name} compares clients, and needs a dealer's triples: RemoteHelper(…, triples=…)")
    reads = StrategyMetrics.of(strategy)
    for used, what in (
        (weigh_by_examples, "weigh_by_examples: halves of updates are added, not multiplied"),
        (trusted_data is not None, "trusted_data: no rule can compare it with secret updates"),
        (
            reads.loss or reads.bit,
            f"{describe_strategy(strategy)}: it computes with metrics, which clients do not send",
        ),
    ):
        if used:
            raise ValueError(f"{name} cannot be used with {what}")
    from .secure_leader import SecureLeader

    return SecureLeader(defense, helper, run_config)  # type: ignore[arg-type]
