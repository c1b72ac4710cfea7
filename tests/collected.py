"""Hands the tests that one process has collected to its copies, which need not do it again.

To collect them takes each worker of `pytest -n` seconds. A copy of the process that has imported
all tests (`warm`) takes over its session with every test in it, and only gives them its own
configuration, and the reports of files that are skipped as a whole. A worker whose options choose
among the tests collects them itself, and so does one where a file could not be imported.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

_CHOOSING = ("keyword", "markexpr", "deselect", "lf", "failedfirst", "newfirst", "stepwise")
"""pytest's options that change which tests are run, or their order."""


class Collecting:
    """A plugin for the process that collects: it keeps the session, and whether that is whole."""

    def __init__(self) -> None:
        self.session: pytest.Session | None = None
        self.failed: list[str] = []
        """The files that could not be imported."""
        self.skipped: list[pytest.CollectReport] = []
        """The reports of files without tests here, because something that they need is missing."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report)
        elif report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.session = session


def hand_over(session: pytest.Session, skipped: Sequence[pytest.CollectReport]) -> None:
    """Let the next session of this process or of a copy be this one, if its options allow that.

    Args:
        session: The one that has collected the tests.
        skipped: Its reports of files that it has skipped, which the next one makes too.
    """
    begin: Any = vars(pytest.Session)["from_config"]
    nodes = list(_nodes(session))
    folders = list(session.config.pluginmanager._dirpath2confmods)
    manager: Any = session._fixturemanager

    def from_config(_: type[pytest.Session], config: pytest.Config) -> pytest.Session:
        setattr(pytest.Session, "from_config", begin)  # noqa: B010 - the next one is another's
        if any(config.getoption(name, None) for name in _CHOOSING):
            return pytest.Session.from_config(config)
        for node in nodes:
            node.config = config
        manager.config = config
        session.trace = config.trace.root.get("collection")
        config.pluginmanager.register(session, "session")

        def collect(*_: Any) -> Sequence[pytest.Item]:
            session._fixturemanager = manager
            _load_plugins(config, folders, nodes)
            for report in skipped:
                config.hook.pytest_collectreport(report=report)
            config.hook.pytest_collection_finish(session=session)
            return session.items

        setattr(session, "perform_collect", collect)  # noqa: B010 - a method of the class
        return session

    setattr(pytest.Session, "from_config", classmethod(from_config))  # noqa: B010 - see above


def _nodes(session: pytest.Session) -> Iterator[Any]:
    """Go through the tests of a session and all that contains them, itself last."""
    seen = set[Any]([session])
    for item in session.items:
        for node in item.iter_parents():
            if node in seen:
                break
            seen.add(node)
            yield node
    yield session


def _load_plugins(config: Any, folders: Sequence[Any], nodes: Sequence[Any]) -> None:
    """Load each `conftest.py` that was found, and each plugin that a test file names, for hooks."""
    manager: Any = config.pluginmanager
    for folder in folders:
        manager._loadconftestmodules(
            folder,
            config.getoption("importmode"),
            config.rootpath,
            consider_namespace_packages=config.getini("consider_namespace_packages"),
        )
    for node in nodes:
        if isinstance(node, pytest.Module):
            manager.consider_module(node.obj)
