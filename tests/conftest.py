"""The suite's frame: a HOME of its own, a fresh home and project per test, and the final look."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any, cast

import pytest
from hypothesis import settings

import new_databases
import order
import sweeps
import tables
import warm
from databases import Databases
from isolation import (
    REAL_HOME,
    Guard,
    Home,
    compile_sources,
    fresh_folder,
    redirect_home,
    run_folder,
)
from postgres import (
    DURABLE,
    Cluster,
    PostgresUnavailableError,
    Server,
    hold_session,
    migrated_template,
    shared_cluster,
    shared_server,
)

redirect_home()
warm.install()
os.environ |= {  # for what signs its requests
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_REGION": "us-east-1",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
}

GUARD = pytest.StashKey[Guard]()
LIFE = pytest.StashKey[IO[str]]()
VIOLATIONS = pytest.StashKey[list[Path]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Start four workers for each processor: half of the time, a test only waits.

    A few tests chosen by name run here: each worker would import all the others first.
    """
    return 0 if config.option.keyword else 4 * (os.cpu_count() or 1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file without the word that is looked for, with `-k` and one word.

    To import them all takes longer than to run the few tests that are meant.
    """
    word = str(config.option.keyword).lower()
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if not is_test or not word.isidentifier() or config.getoption("apart"):
        return None
    text = f"{collection_path}\n{collection_path.read_text(encoding='utf-8')}"
    return None if word in text.lower() else True


def pytest_collection() -> None:
    """Collect no garbage while the tests are collected: nearly everything made then is kept."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the collected tests out of every later search for garbage."""
    if not session.config.option.collectonly:
        new_databases.install()
        if len(session.items) > 1000:  # no quick run
            warm.begin()
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Begin a long run once programs can be copies: until then each takes four times as long."""
    warm.wait_if_begun()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the programs of a test, and make its databases, in the way that suits it."""
    warm.is_cold = item.get_closest_marker("cold") is not None
    new_databases.choose(item)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole",
        action="store_true",
        help="try every combination and every point of the fault suite, not a sample",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="run only the tests that are marked long",
    )
    parser.addoption(
        "--apart",
        action="store_true",
        help="make a test of each case of a table that one test goes through",
    )


@pytest.fixture
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A fresh `$SOONG_AGENT_HOME` without a config; `home.write_config(toml)` writes one."""
    made = Home(fresh_folder("home", _name(request)))
    monkeypatch.setenv("SOONG_AGENT_HOME", str(made.path))
    return made


@pytest.fixture
def project(request: pytest.FixtureRequest) -> Path:
    """A fresh, empty project folder."""
    return fresh_folder("project", _name(request))


@pytest.fixture(scope="session")
def shared_postgres() -> Server:
    """The PostgreSQL server that all processes of this run share."""
    try:
        return shared_server(run_folder())
    except PostgresUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def databases(shared_postgres: Server) -> Iterator[Databases]:
    """Databases with the tables of this version, which `database_url` lends."""
    template = migrated_template(shared_postgres, run_folder())
    with Databases.opened(shared_postgres, template) as opened:
        yield opened


@pytest.fixture
def database_url(shared_postgres: Server, databases: Databases) -> Iterator[str]:
    """A database that only this test has, with the tables of this version and without rows."""
    with databases.lend() as name:
        yield shared_postgres.url(name)


@pytest.fixture
def empty_database_url(shared_postgres: Server) -> Iterator[str]:
    """A database of the test's own without a table, dropped afterwards."""
    name = shared_postgres.create_database()
    yield shared_postgres.url(name)
    shared_postgres.drop_database(name)


@pytest.fixture(scope="session")
def postgres_cluster() -> Cluster:
    """Makes servers for tests that stop or tune one: `postgres_cluster.new_server(FAST)`."""
    try:
        return shared_cluster(run_folder())
    except PostgresUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def postgres_server(postgres_cluster: Cluster) -> Iterator[Server]:
    """A started server of the test's own: `stop`, `start`, `restart`, `kill`; `url()` stays."""
    server = postgres_cluster.new_server(DURABLE)
    server.start()
    yield server
    if server.is_running():
        server.stop("immediate")


def _name(request: pytest.FixtureRequest) -> str:
    item = cast("pytest.Item", request.node)
    return item.name


def _ignore(_: int, __: FrameType | None) -> None:
    """Do nothing about a signal, which programs that are started do not inherit."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("whole"):
        sweeps.try_all()
    if config.getoption("apart"):
        tables.set_apart()
    # Slowness is no finding: the machine may be busy.
    settings.register_profile("suite", deadline=None, max_examples=sweeps.examples(100))
    settings.load_profile("suite")
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A suite that was started to survive its terminal must not hand that on, as `SIG_IGN` is.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _ignore)
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    config.stash[GUARD] = Guard(Path.home(), Path(os.environ[REAL_HOME]))
    config.stash[LIFE] = hold_session(run_folder())
    compile_sources()
    if getattr(config.option, "tx", None):  # workers will be started
        chosen = [f"--{name}" for name in ("whole", "long", "apart") if config.getoption(name)]
        warm.begin_workers([*config.args, *chosen])


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Spare a worker two questions about the attempts of each test.

    They go through a socket, byte by byte, and only tell how often a test has crashed its worker:
    such a test is not run again.
    """
    attempts: Any = getattr(session.config, "failures_db", None)
    if attempts is not None and hasattr(session.config, "workerinput"):
        attempts.get_test_failures = _never_crashed
        attempts.set_test_reruns = _forget


def _never_crashed(_: str) -> int:
    return 0


def _forget(*_: object) -> None:
    """Tell nobody how often a test may be run again."""


def pytest_unconfigure() -> None:
    warm.end()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs elsewhere, give tables time, order tests, and refuse names that differ.

    `--whole` adds sweeps, `make check` runs the checks, and `--long` runs the long tests. Whoever
    names a file, or a word with `-k`, gets the long tests too, and those that are checks there.
    Names differ where they contain an address in memory, which each process has its own: workers
    could not share tests with such names.
    """
    if odd := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"give the parameters of these tests ids: {', '.join(odd)}")
    for item in items:  # a table may take longer than one of its cases
        if (count := tables.cases_of(getattr(item, "function", None))) > 1:
            given = item.get_closest_marker("timeout")
            limit_s = given.args[0] if given else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(limit_s + 3 * count), append=False)
    named = {Path(each.partition("::")[0]).resolve() for each in config.args if ".py" in each}
    left = [item for item in items if not _is_chosen(item, config, named)]
    if left:
        config.hook.pytest_deselected(items=left)
        kept = set(items) - set(left)
        items[:] = [item for item in items if item in kept]
    order.spread(items)


def _is_chosen(item: pytest.Item, config: pytest.Config, named: set[Path]) -> bool:
    marks = {mark.name for mark in item.iter_markers()} & {"checked", "long", "sweep"}
    if config.getoption("long") and "long" not in marks:
        return False
    if not sweeps.is_whole() and "sweep" in marks:
        return False
    if sweeps.is_whole() or item.path in named:
        return True
    if "checked" in marks:
        return "checked" in str(config.getoption("markexpr"))
    return "long" not in marks or bool(config.getoption("long") or config.option.keyword)


def pytest_report_header() -> str:
    return f"homes and projects of the tests: {run_folder()}"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """O10: the run fails if anything outside its own folder was touched."""
    guard = session.config.stash.get(GUARD, None)
    if guard is not None and (touched := guard.violations()):
        session.config.stash[VIOLATIONS] = touched
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


MEASURED = "measured"
"""The name of a property with a line that the summary shows."""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if touched := config.stash.get(VIOLATIONS, None):
        terminalreporter.section("changed outside the suite's own folder", red=True)
        for path in touched:
            terminalreporter.line(str(path))
    passed: list[pytest.TestReport] = terminalreporter.getreports("passed")
    for report in passed:
        for name, text in report.user_properties:
            if name == MEASURED:
                terminalreporter.line(str(text))
