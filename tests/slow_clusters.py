"""HDBSCAN by its definition, in obvious Python: groups that are connected below a distance, and how long they last."""

from __future__ import annotations

Table = list[list[float]]
Group = frozenset[int]


def connected(distances: Table, points: Group, limit: float) -> list[Group]:
    """The groups of points that are linked by distances below the limit."""
    groups, remaining = list[Group](), set(points)
    while remaining:
        reached = {remaining.pop()}
        waiting = list(reached)
        while waiting:
            i = waiting.pop()
            new = {j for j in remaining if distances[i][j] < limit}
            remaining -= new
            reached |= new
            waiting += new
        groups.append(frozenset(reached))
    return groups


def slow_density_clusters(distances: Table, min_size: int, min_samples: int, *, single: bool) -> set[Group]:
    """The clusters; points that are in none of them belong to no cluster."""
    n = len(distances)
    core = [sorted(d for j, d in enumerate(row) if j != i)[min(min_samples, n - 1) - 1] if n > 1 else 0.0
            for i, row in enumerate(distances)]  # fmt: skip
    reach = [[max(distances[i][j], core[i], core[j]) if i != j else 0.0 for j in range(n)] for i in range(n)]
    limits = sorted({value for row in reach for value in row if value > 0}, reverse=True)
    densest = 1 / (max([*limits, 1e-300], default=0) * 1e-12)

    def explore(points: Group, birth: float) -> tuple[float, set[Group], set[Group], Group]:
        """A cluster's stability or its parts', the best choice, the choice without itself, and its densest points."""
        inside, stability = points, 0.0
        for limit in limits:
            groups = connected(reach, inside, limit)
            if len(groups) == 1:
                continue
            density = 1 / limit
            large = [group for group in groups if len(group) >= min_size]
            if len(large) == 1:
                stability += (len(inside) - len(large[0])) * (density - birth)
                inside = large[0]
                continue
            stability += len(inside) * (density - birth)
            parts = [explore(group, density) for group in large]
            below = set().union(*(part[1] for part in parts)) if parts else set[Group]()
            total = sum(sorted(part[0] for part in parts))
            if parts and total > stability:
                return total, below, below, inside
            return stability, {points}, below, inside
        return stability + len(inside) * (densest - birth), {points}, set(), inside

    everybody = frozenset(range(n))
    _, best, without_root, core_points = explore(everybody, 0.0)
    if best != {everybody}:
        return best
    return {core_points} if single else without_root
