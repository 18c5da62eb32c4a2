"""View changes as text: what an operation is, how far it has come, the history as a table, a plan."""

from __future__ import annotations

from typing import Any

from actors.commands.options import plural

Document = dict[str, Any]


def changes(former: dict[str, list[int]], wanted: dict[str, list[int]]) -> str:
    """Return the difference of two sets of slots: `matcher +1 +2, exit point -1`."""
    parts = []
    for layer, slots in wanted.items():
        present = former.get(layer, [])
        started = [f"+{slot}" for slot in slots if slot not in present]
        stopped = [f"-{slot}" for slot in present if slot not in slots]
        if started or stopped:
            parts.append(" ".join([layer.replace("_", " "), *started, *stopped]))
    return ", ".join(parts) or "no change"


def size(count: int) -> str:
    """Return a number of bytes for people: `999 B`, `1.5 kB`, `12 MB`."""
    number = float(count)
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} GB" if number < 1000 else f"{number:,.0f} GB"


def duration(milliseconds: int) -> str:
    """Return a time for people: `999 ms`, `12.3 s`."""
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def phases(operation: Document) -> dict[str, int]:
    """Return the milliseconds that an operation has spent in each phase, over all its view changes."""
    sums: dict[str, int] = {}
    for step in operation["steps"]:
        for phase, spent in step["phases_ms"].items():
            sums[phase] = sums.get(phase, 0) + spent
    return sums


def describe_operation(operation: Document) -> str:
    """Return an operation as one line."""
    parts = [
        f"operation {operation['number']} ({changes(operation['former'], operation['wanted'])}): {operation['state']}",
        f"{operation['groups_moved']} of at least {operation['groups_minimum']} key groups moved",
        f"{plural(operation['entries'], 'subscription')} ({size(operation['bytes'])}) copied",
        plural(len(operation["steps"]), "view change"),
        duration(operation["duration_ms"]),
    ]
    return ", ".join(parts) + (f"; {operation['reason']}" if operation["reason"] else "")


def table(rows: list[tuple[str, ...]]) -> str:
    """Return rows under each other; all columns but the last are as wide as they need be."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def describe_history(operations: list[Document]) -> str:
    """Return the operations as a table. GROUPS: moved/fewest possible. PHASES: ms over all view changes."""
    rows: list[tuple[str, ...]] = [
        ("NUMBER", "WHAT", "STATE", "GROUPS", "ENTRIES", "BYTES", "DURATION", "VIEWS", "PHASES (MS)", "REASON")
    ]
    for operation in operations:
        rows.append(
            (
                str(operation["number"]),
                changes(operation["former"], operation["wanted"]),
                operation["state"],
                f"{operation['groups_moved']}/{operation['groups_minimum']}",
                f"{operation['entries']:,}",
                size(operation["bytes"]),
                duration(operation["duration_ms"]),
                str(len(operation["steps"])),
                " ".join(f"{phase}={spent}" for phase, spent in phases(operation).items()) or "-",
                operation["reason"] or "",
            )
        )
    return table(rows) if operations else "the view has not changed yet"


def describe_plan(plan: Document) -> str:
    """Return what would be done, a line for each kind of thing."""
    lines = []
    for what in ("start", "stop"):
        slots = [f"{layer.replace('_', ' ')} {slot}" for layer, some in plan[what].items() for slot in some]
        lines.append(f"{what}: {', '.join(slots) or 'nothing'}")
    lines.append(
        f"move: {plan['groups_moved']} key groups (at least {plan['groups_minimum']}), "
        f"about {size(plan['bytes_moved_about'])}"
    )
    lines += [f"  matcher {move}: {count}" for move, count in plan["moves"].items()]
    lines.append(f"strategy: {plan['strategy']}, about {plural(plan['view_changes_about'], 'view change')}")
    return "\n".join(lines)
