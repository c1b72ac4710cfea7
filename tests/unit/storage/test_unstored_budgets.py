"""Budgets that no session store knows."""

import sys
from threading import Thread
from typing import Any

import pytest

from agent_core.storage.budgets import UnstoredBudgets


def test_budgets_may_be_collected_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", broken.append)
    held = [UnstoredBudgets()]
    thread = Thread(target=held.clear)
    thread.start()
    thread.join()
    assert not broken
