"""Draws docs/graph.svg; positions are in PLACES, edges come from the Dagster definitions.

    python docs/draw_graph.py [file.svg]    # or `make graph`

The picture embeds its assets and edges as JSON, by which a test detects that it is out of date.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

WIDTH, HEIGHT = 1180, 440
NODE_WIDTH, NODE_HEIGHT = 148, 38
# Centres.
PLACES = {
    "prompts": (110, 95),
    "completions": (110, 165),
    "comparisons": (110, 235),
    "preference_pairs": (325, 130),
    "votes": (325, 318),
    "votes_inbox": (325, 384),
    "annotator_model": (540, 65),
    "reward_model": (540, 130),
    "calibration": (540, 195),
    "reflection_log": (540, 318),
    "drift_report": (540, 384),
    "retraining_decision": (755, 384),
    "retraining_set": (755, 235),
    "candidate_model": (912, 235),
    "evaluation": (912, 130),
    "gate": (1083, 182),
}
# Edges that would run behind a box take the corridor between `learn` and `watch`: start, end and
# height of the level stretch.
LEVELS = {("preference_pairs", "retraining_set"): (470, 640, 250)}
# Box of each group (left, top, right, bottom), the colour of its nodes and where its name stands.
GROUPS = {
    "generate": ((25, 40, 195, 270), "#2563eb"),
    "feedback": ((240, 278, 410, 420), "#b45309"),
    "learn": ((240, 35, 625, 225), "#047857"),
    "watch": ((455, 278, 625, 420), "#7c3aed"),
    "improve": ((670, 75, 1164, 420), "#be123c"),
}
STYLE = """
text { font: 14px ui-sans-serif, system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; }
.panel { fill: #ffffff; stroke: #d0d7de; } .group { fill: #f6f8fa; stroke: #d0d7de; }
.name { fill: #ffffff; font-weight: 600; font-size: 13px; } \
.label { font-size: 13px; font-weight: 600; letter-spacing: .04em; }
.edge { fill: none; stroke: #57606a; stroke-width: 1.5; } .note { fill: #57606a; font-size: 12px; }
"""


def graph() -> dict[str, Any]:
    """Groups by asset, edges in order and the assets that people fill from outside, as the
    definitions have them.
    """
    from rlhf_pipeline.application.definitions import defs

    asset_graph = defs.resolve_asset_graph()
    nodes = {
        key.to_user_string(): asset_graph.get(key) for key in asset_graph.toposorted_asset_keys
    }
    return {
        "assets": {name: node.group_name for name, node in sorted(nodes.items())},
        "edges": sorted(
            [parent.to_user_string(), name]
            for name, node in nodes.items()
            for parent in node.parent_keys
        ),
        "external": sorted(name for name, node in nodes.items() if not node.is_materializable),
    }


def drawn(path: Path) -> dict[str, Any]:
    """What the picture in `path` was made from."""
    text = path.read_text(encoding="utf-8")
    metadata: dict[str, Any] = json.loads(
        text.partition("<metadata>")[2].partition("</metadata>")[0]
    )
    return metadata


def svg(made_from: dict[str, Any]) -> str:
    """The picture; on a panel of its own, so that it reads on light and dark pages alike. Raises
    KeyError for an asset without a place.
    """
    missing = sorted(set(made_from["assets"]) - set(PLACES))
    if missing:
        raise KeyError(f"{missing} have no place in docs/draw_graph.py. Add them to PLACES.")
    parts = [_box(group, *GROUPS[group]) for group in GROUPS]
    parts += [_edge(*edge) for edge in made_from["edges"]]
    parts += [
        _node(name, group, name in made_from["external"])
        for name, group in made_from["assets"].items()
    ]
    title = (
        f"The loop as Dagster assets: {len(made_from['assets'])} assets, {len(made_from['edges'])} "
        "edges"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}">'
    )
    arrow = (
        '<marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#57606a"/></marker>'
    )
    note = (
        f'<text class="note" x="{WIDTH - 25}" y="{HEIGHT - 26}" text-anchor="end">dashed: '
        "filled from outside, by people’s votes</text>"
    )
    panel = f'<rect class="panel" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="12"/>'
    meta = f"<metadata>{json.dumps(made_from, sort_keys=True)}</metadata>"
    return "\n".join(
        [
            head,
            f"<title>{title}</title>",
            meta,
            f"<style>{STYLE}</style>",
            f"<defs>{arrow}</defs>",
            panel,
            *parts,
            note,
            "</svg>",
            "",
        ]
    )


def _box(group: str, corners: tuple[int, int, int, int], colour: str) -> str:
    left, top, right, bottom = corners
    box = (
        f'<rect class="group" x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" '
        'rx="10"/>'
    )
    return f'{box}<text class="label" x="{left + 12}" y="{top - 8}" fill="{colour}">{group}</text>'


def _node(name: str, group: str, external: bool) -> str:
    x, y = PLACES[name]
    colour = GROUPS[group][1]
    look = (
        f'fill="#ffffff" stroke="{colour}" stroke-width="2" stroke-dasharray="5 4"'
        if external
        else f'fill="{colour}"'
    )
    ink = f' style="fill:{colour}"' if external else ""
    box = (
        f'<rect x="{x - NODE_WIDTH / 2:g}" y="{y - NODE_HEIGHT / 2:g}" width="{NODE_WIDTH}" '
        f'height="{NODE_HEIGHT}" rx="8" {look}/>'
    )
    return f'{box}<text class="name" x="{x}" y="{y + 5}" text-anchor="middle"{ink}>{name}</text>'


def _edge(source: str, target: str) -> str:
    """Straight within a column, around it where a node stands between, else from right side to left
    side.
    """
    (x1, y1), (x2, y2) = PLACES[source], PLACES[target]
    w, h = NODE_WIDTH / 2, NODE_HEIGHT / 2
    between = any(x == x1 and min(y1, y2) < y < max(y1, y2) for x, y in PLACES.values())
    if x1 == x2 and between:
        path = f"M{x1 - w:g},{y1} C{x1 - w - 30:g},{y1} {x1 - w - 30:g},{y2} {x2 - w:g},{y2}"
    elif x1 == x2:
        sign = 1 if y2 > y1 else -1
        path = f"M{x1},{y1 + sign * h:g} L{x2},{y2 - sign * h:g}"
    elif (source, target) in LEVELS:
        start, end, level = LEVELS[source, target]
        path = (
            f"{_curve(x1 + w, y1, start, level)} L{end},{level} "
            f"{_curve(end, level, x2 - w, y2).partition(' ')[2]}"
        )
    else:
        path = _curve(x1 + w, y1, x2 - w, y2)
    return f'<path class="edge" marker-end="url(#arrow)" d="{path}"/>'


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    """A path that leaves and arrives level."""
    pull = min(90, (x2 - x1) * 0.6)
    return f"M{x1:g},{y1:g} C{x1 + pull:g},{y1:g} {x2 - pull:g},{y2:g} {x2:g},{y2:g}"


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "graph.svg"
    drawing = graph()
    path.write_text(svg(drawing), encoding="utf-8")
    print(f"{len(drawing['assets'])} assets, {len(drawing['edges'])} edges in {path}")


if __name__ == "__main__":
    main()
