"""A chain as a drawing: its jobs from left to right, what they waited for above, what waits for it below.

Hundreds fold: a row shows a few and says how many more there are, what is open or failed before what is completed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuert.model import Chain, Job

WIDTH: Final = 176
HEIGHT: Final = 46
GAP_X: Final = 44
GAP_Y: Final = 54
MARGIN: Final = 12
FIRST: Final = 3  # jobs of a long chain that are drawn, from its beginning
LAST: Final = 5  # and from its end
BLOCKERS: Final = 6
BLOCKED: Final = 6
LETTERS: Final = 22


@dataclass(frozen=True)
class Node:
    """A box: a job, a chain, or a fold."""

    x: int
    y: int
    label: str
    note: str
    status: str
    kind: str = ""
    id: str = ""


@dataclass(frozen=True)
class Edge:
    """A line from one box to another."""

    path: str
    dashed: bool = False


@dataclass(frozen=True)
class Graph:
    """What the template draws."""

    width: int
    height: int
    nodes: list[Node]
    edges: list[Edge]


def draw_graph(
    jobs: Sequence[Job],
    blockers: Mapping[str, Sequence[Chain]],
    blocked: Sequence[Job],
    *,
    more_jobs: bool,
    more_blocked: bool,
) -> Graph:
    """The drawing of a chain. `more_jobs` says that older ones are on another page, `more_blocked` that more wait for it."""
    shown = _folded(jobs)
    above = {job.id: _sorted(blockers.get(job.id, ())) for job in shown if job is not None}
    top = max((min(len(chains), BLOCKERS) + (len(chains) > BLOCKERS) for chains in above.values()), default=0)
    base = MARGIN + top * (HEIGHT + 14) + (GAP_Y - 14 if top else 0)
    nodes: list[Node] = []
    edges: list[Edge] = []
    previous: Node | None = None
    for column, job in enumerate(shown):
        x = MARGIN + column * (WIDTH + GAP_X)
        if job is None:
            node = Node(x, base, f"{len(jobs) - FIRST - LAST:,} jobs more", "folded", "fold")
        else:
            number = f"job {job.chain_index + 1}" + (f", attempt {job.attempt}" if job.attempt > 1 else "")
            node = Node(x, base, _short(job.type_name), number, job.status.value, "jobs", job.id)
        nodes.append(node)
        if previous is not None:
            edges.append(_across(previous, node))
        if job is not None:
            stack = list(_stack(x, base, above[job.id]))
            nodes.extend(stack)
            edges.extend(_rail(stack, node))
        previous = node
    if more_jobs and nodes:
        first = nodes[0]
        edges.append(Edge(f"M 0 {first.y + HEIGHT // 2} H {first.x}", dashed=True))
    depth = 0
    if previous is not None:
        below = list(_below(previous, blocked, more_blocked))
        depth = len(below)
        nodes.extend(below)
        edges.extend(_rail_below(previous, below))
    width = MARGIN * 2 + max(1, len(shown)) * (WIDTH + GAP_X) - GAP_X
    height = base + HEIGHT + MARGIN + (GAP_Y - 14 + depth * (HEIGHT + 14) - 14 if depth else 0)
    return Graph(width, height, nodes, edges)


def _folded(jobs: Sequence[Job]) -> list[Job | None]:
    if len(jobs) <= FIRST + LAST + 1:
        return list(jobs)
    return [*jobs[:FIRST], None, *jobs[-LAST:]]


def _sorted(chains: Sequence[Chain]) -> list[Chain]:
    worst = {"failed": 0, "cancelled": 1, "running": 2, "pending": 3, "blocked": 4, "completed": 5}
    return sorted(chains, key=lambda chain: worst[chain.status.value])


def _stack(x: int, base: int, chains: Sequence[Chain]) -> Iterator[Node]:
    """Blockers, one above the other, the worst nearest to the top."""
    rows = min(len(chains), BLOCKERS) + (len(chains) > BLOCKERS)
    y = base - (GAP_Y - 14) - rows * (HEIGHT + 14)
    for chain in chains[:BLOCKERS]:
        yield Node(x, y, _short(chain.type_name), chain.id[-8:], chain.status.value, "chains", chain.id)
        y += HEIGHT + 14
    if rest := chains[BLOCKERS:]:
        counted = Counter(chain.status.value for chain in rest)
        note = ", ".join(f"{number:,} {status}" for status, number in counted.most_common(2))
        yield Node(x, y, f"{len(rest):,} chains more", note, "fold")


def _below(tail: Node, blocked: Sequence[Job], more: bool) -> Iterator[Node]:
    y = tail.y + HEIGHT + GAP_Y - 14
    for job in blocked[:BLOCKED]:
        yield Node(tail.x, y, _short(job.type_name), job.id[-8:], job.status.value, "jobs", job.id)
        y += HEIGHT + 14
    if (rest := len(blocked) - BLOCKED) > 0:
        yield Node(tail.x, y, f"{rest:,}{'+' if more else ''} jobs more", "wait for this chain", "fold")


def _across(left: Node, right: Node) -> Edge:
    y = left.y + HEIGHT // 2
    return Edge(f"M {left.x + WIDTH} {y} H {right.x}")


def _rail(stack: Sequence[Node], node: Node) -> Iterator[Edge]:
    """From each blocker along the left of the column down to the job."""
    for box in stack:
        y, rail = box.y + HEIGHT // 2, box.x - 6
        yield Edge(f"M {box.x} {y} H {rail} V {node.y - 10} H {node.x + 14} V {node.y}")


def _rail_below(tail: Node, below: Sequence[Node]) -> Iterator[Edge]:
    for box in below:
        yield Edge(
            f"M {tail.x + 14} {tail.y + HEIGHT} V {tail.y + HEIGHT + 10} H {box.x - 6} V {box.y + HEIGHT // 2} H {box.x}",
            dashed=True,
        )


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"
