"""``concord registry history``: who moved a model's champion, when and why, and whether the ledger is intact."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from concord.workflows.console import Answer, counted, table
from concord.workflows.promotion.champion import settled_state
from concord.workflows.promotion.ledger import Entry, check_chain, read_line


def run(name: str) -> Answer:
    """Return the ledger of a model, oldest line first; exit code 1 if its chain is broken.

    Raises:
        ModelError: when there is no such model.
        TrackingError: when the store cannot be reached.
    """
    state = settled_state(name)
    breaks = check_chain(state.lines, champion=state.champion)
    broken = [f"line {found.line}: {found.message}" for found in breaks]
    values = {
        "model": name,
        "champion": state.champion,
        "previous": state.previous,
        "lines": [json.loads(text) for text in state.lines if _is_line(text)],
        "breaks": [asdict(found) for found in breaks],
    }
    listed = _table([read_line(text) for text in state.lines if _is_line(text)])
    verdict = ["The chain is broken:", *broken] if broken else [f"{counted(len(state.lines), 'line')}, chain intact."]
    return Answer(values=values, text="\n".join([listed, "", *verdict]).strip(), exit_code=1 if broken else 0)


def _is_line(text: str) -> bool:
    try:
        read_line(text)
    except ValueError:
        return False
    return True


def _table(entries: Sequence[Entry]) -> str:
    rows = [
        (
            entry.number,
            entry.when,
            entry.action + (" (forced)" if entry.forced else ""),
            "-" if entry.came_from is None else str(entry.came_from),
            str(entry.went_to),
            entry.who,
            (entry.evidence or "-")[:12],
            "-" if entry.uses is None else str(entry.uses),
            entry.reason or "",
        )
        for entry in entries
    ]
    header = ("line", "when", "action", "from", "to", "who", "evidence", "uses", "reason")
    return table(rows, header=header, right={3, 4, 7}) if rows else "No lines yet."
