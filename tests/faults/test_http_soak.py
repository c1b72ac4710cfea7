"""Five seconds of the HTTP client's soak. `make soak` plays an hour of it."""

from pathlib import Path

import pytest

from faults.http_soak import play


@pytest.mark.long
async def test_every_response_of_the_http_client_is_whole_or_an_error(tmp_path: Path) -> None:
    tried = await play(tmp_path, seconds=5, seed=1)
    assert not tried.problems
    assert sum(tried.counts.values()) > 20
