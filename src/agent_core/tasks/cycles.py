"""Find a circle in a graph of ten thousand steps without ten thousand frames on the stack."""

from collections.abc import Callable, Iterable


def find_cycle(starts: Iterable[str], follow: Callable[[str], Iterable[str]]) -> list[str]:
    """Return a cycle that can be reached from `starts`, or nothing.

    Depth-first; every node is entered once. The first node of the answer is also its last.
    """
    done: set[str] = set()
    for start in starts:
        if start in done:
            continue
        on_path = {start: None}
        walk = [iter(follow(start))]
        while walk:
            node = next(walk[-1], None)
            if node is None:
                walk.pop()
                done.add(on_path.popitem()[0])
            elif node in on_path:
                path = list(on_path)
                return [*path[path.index(node) :], node]
            elif node not in done:
                on_path[node] = None
                walk.append(iter(follow(node)))
    return []
