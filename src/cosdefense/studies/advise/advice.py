"""The answer in words and numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...catalog.registry import build_defense
from ...core import Need
from ...core.experiment_folder import reading_from
from ...runs.experiment import Experiment
from .candidates import Table, without_label
from .choice import MIN_GAIN, Choice, list_broken, list_survived, list_weakened
from .measured import Client, Outcome
from .tournament import Tournament


def write_flower_lines(table: Table, experiment: Experiment) -> list[str]:
    """What to paste into a Flower server: the same rule, participation and weights."""
    with reading_from(experiment.source):  # which may define parts
        defense = build_defense(without_label(table))
    share = experiment.training.sampled / experiment.data.clients
    imports = [
        "import cosdefense",
        "from cosdefense.flower import Defended",
        "from flwr.serverapp.strategy import FedAvg",
    ]
    strategy = "FedAvg()" if share == 1 else f"FedAvg(fraction_train={share:.4g})"
    rule = _write_defense(table)
    if defense.hooks:  # a server does not run them
        hooks = ", ".join(type(hook).__name__ for hook in defense.hooks)
        imports = ["import dataclasses", *imports, f"# clients run {hooks} while they train"]
        rule = f"dataclasses.replace({rule}, hooks=())"
    words = [strategy, rule]
    if experiment.training.weighting == "samples":
        words.append("weigh_by_examples=True")
    if defense.needs & {Need.SERVER_DATA, Need.CLIENT_DATA}:
        imports.append("# my_data: your subclass of cosdefense.TrustedData")
        words.append("trusted_data=my_data")
    return [*imports, f"strategy = Defended({', '.join(words)})"]


def _write_defense(table: Table) -> str:
    options = without_label(table)
    if "name" not in options:
        return f"cosdefense.catalog.registry.build_defense({options!r})"
    words = [_quote(options.pop("name")), *(f"{key}={_quote(value)}" for key, value in options.items())]
    return f"cosdefense.get({', '.join(words)})"


def _quote(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def write_advice(choice: Choice, outcomes: Sequence[Outcome], tournament: Tournament) -> str:
    """The whole answer as text, without the notes."""
    metric = tournament.metric.name
    blocks = [_write_recommendation(choice)]
    if choice.recommended is not None:
        best = choice.recommended
        blocks.append(_write_cost(best, choice.reference, metric))
        blocks.append("\n".join(_write_attacks(best, metric)))
        lines = write_flower_lines(tournament.defenses[best.label], tournament.experiment)
        blocks.append("\n".join(["Paste into a Flower server:", *(f"  {line}" for line in lines)]))
    if choice.refused:
        reasons = [f"  {outcome.label}: {cost}" for outcome, cost in choice.refused]
        blocks.append("\n".join(["Costs too much:", *reasons]))
    blocks.append(_write_table(outcomes, metric))
    return "\n\n".join(blocks) + "\n"


def explain(choice: Choice) -> list[str]:
    """Why, in three sentences."""
    best, reference = choice.best, choice.reference
    harm, left = reference.worst
    plain = f"plain averaging keeps {left:.0%} ({harm})"
    if best is None:
        refused = len(choice.refused)
        return [
            "In its worst case " + plain + " of what training gains.",
            f"All {refused} defenses that were tried cost too much without an attack.",
            "Use plain averaging and watch it, or try again with more clients, more rounds or data at the server.",
        ]
    attack, kept = best.worst
    clean = best.kept[best.clean]
    first = f"In its worst case ({attack}) {best.label} keeps {kept:.0%} of what training gains; {plain} in its own."
    if choice.recommended is None:
        return [
            first,
            f"That is less than {MIN_GAIN:.0%} more, so no defense is worth its cost here.",
            f"Of those whose cost is acceptable, {best.label} does best.",
        ]
    second = f"Without an attack it keeps {clean:.0%}, and {_describe_rejections(best)}."
    third = f"It survives {len(list_survived(best))} of {len(best.attacked)} attacks"
    return [first, second, f"{third}, plain averaging {len(list_survived(reference))}."]


def to_json(choice: Choice, outcomes: Sequence[Outcome], tournament: Tournament) -> dict[str, Any]:
    """The same for machines."""
    best, tables = choice.recommended, tournament.defenses
    return {
        "recommended": None if best is None else tables[best.label],
        "why": explain(choice),
        "flower": None if best is None else write_flower_lines(tables[best.label], tournament.experiment),
        "survives": [] if best is None else list_survived(best),
        "weakened_by": [] if best is None else list_weakened(best),
        "broken_by": [] if best is None else list_broken(best),
        "too_costly": {outcome.label: cost for outcome, cost in choice.refused},
        "metric": tournament.metric.name,
        "defenses": [_outcome_to_json(outcome) for outcome in outcomes],
    }


def _outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "defense": outcome.label,
        "values": dict(outcome.values),
        "kept": dict(outcome.kept),
        "honest_rejected": outcome.honest_rejected,
        "most_rejected": _client_to_json(outcome.most_rejected),
        "worst_served": _client_to_json(outcome.worst_served),
    }


def _client_to_json(client: Client | None) -> dict[str, Any] | None:
    return None if client is None else {"client": client.name, client.measured: client.value}


def _write_recommendation(choice: Choice) -> str:
    best = choice.recommended
    head = f"Recommended: {best.label}" if best else "Recommended: plain averaging (no defense is worth its cost)"
    return "\n".join([head, *(f"  {sentence}" for sentence in explain(choice))])


def _write_cost(best: Outcome, reference: Outcome, metric: str) -> str:
    lines = ["Cost without an attack:"]
    values = (outcome.values[outcome.clean] for outcome in (best, reference))
    lines.append("  {}: {:.4g}, plain averaging {:.4g}".format(metric, *values))
    rejected = "nobody is rejected" if best.honest_rejected is None else f"{best.honest_rejected:.1%} of their updates"
    lines.append(f"  honest clients rejected: {rejected}")
    if best.most_rejected is not None:
        most = best.most_rejected
        lines.append(f"  most-rejected honest client: {most.name}, in {most.value:.0%} of its rounds")
    if best.worst_served is not None and reference.worst_served is not None:
        own, usual = best.worst_served, reference.worst_served
        shown = [
            f"{client.value:.4g}" if client.measured == "loss" else f"{client.value:.1%}" for client in (own, usual)
        ]
        lines.append(
            f"  worst-served client: {own.name}, {own.measured} {shown[0]}; plain averaging: {usual.name}, {shown[1]}"
        )
    return "\n".join(lines)


def _write_attacks(best: Outcome, metric: str) -> Iterator[str]:
    groups = (("Survives", list_survived), ("Weakened by", list_weakened), ("Broken by", list_broken))
    for title, list_attacks in groups:
        words = [f"{attack} ({metric} {best.values[attack]:.4g})" for attack in list_attacks(best)]
        yield f"{title}: {', '.join(words) or 'none of those tried'}"


def _describe_rejections(outcome: Outcome) -> str:
    if not outcome.honest_rejected:
        return "rejects nobody honest"
    return f"rejects {outcome.honest_rejected:.1%} of the honest updates"


def _write_table(outcomes: Sequence[Outcome], metric: str) -> str:
    """What each defense reached under each attack."""
    attacks = list(outcomes[0].values)
    rows = [[metric, *attacks], *([o.label, *(f"{o.values[a]:.4g}" for a in attacks)] for o in outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
