"""`soong-agent store`: brings databases up to date, checks them, and copies sessions."""

import json
import os
from pathlib import Path

from msgspec.structs import replace

from agent_core.cli.databases import examine_file, examine_secrets, examine_server
from agent_core.cli.exit_codes import COMPLETED, FAILED
from agent_core.cli.findings import show_findings
from agent_core.cli.layout import shown_error
from agent_core.cli.options import Options
from agent_core.cli.setup import run_on_terminal
from agent_core.cli.terminal import Style, Terminal, exit_code_of
from agent_core.config.databases import find_database_url, url_secrets
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError
from agent_core.redaction import Redactor
from agent_core.runtime.copying import CopiedSession, SessionCopies, StoreAddress, migrate_store
from agent_core.text import Clean, visible
from agent_core.types.lanes import check_tenant


def manage_store(options: Options) -> int:
    """Carry out the action, and return the exit code."""

    def manage(setup: Setup, terminal: Terminal, clean: Clean) -> int:
        secrets = Redactor({})
        for text in (options.address, options.source, options.target):
            if "://" in text:
                secrets.learn(url_secrets(text, "address", os.environ))

        def cleaner(text: str) -> str:
            return visible(clean(secrets.text(text)), one_line=True)

        try:
            if options.action == "copy":
                return _copy(options, setup, terminal, cleaner)
            address = _address(options.address, setup)
            if options.action == "check":
                return _check(address, options, setup, terminal, cleaner)
            return _migrate(address, options, terminal)
        except AgentCoreError as error:
            terminal.line(f"error: {shown_error(cleaner(error.message))}", Style.BAD)
            return exit_code_of(error)

    return run_on_terminal(options, None, manage, asks_model=False)


def _address(text: str, setup: Setup) -> StoreAddress:
    """Return the named database, or else the one of the settings."""
    if text:
        return StoreAddress.parse(text, os.environ)
    url = find_database_url(setup, os.environ)
    if url is None:
        return StoreAddress(f"sqlite:{setup.session_db}", path=setup.session_db)
    return StoreAddress(f"env:{setup.config.store.url_env}", url=url)


def _check(
    address: StoreAddress, options: Options, setup: Setup, terminal: Terminal, clean: Clean
) -> int:
    if address.path is not None:
        findings = examine_file(address.path)
    else:
        url = address.url or ""
        findings = examine_server(url, setup)
        findings += examine_secrets(url_secrets(url, address.name.removeprefix("env:"), os.environ))
    shown = [replace(each, text=clean(each.text)) for each in findings]
    return show_findings(shown, terminal, as_json=options.json)


def _migrate(address: StoreAddress, options: Options, terminal: Terminal) -> int:
    before, now = migrate_store(address)
    if options.json:
        shown = {"store": address.name, "before": before, "version": now}
        terminal.record(json.dumps(shown))
    elif before == now:
        terminal.record(f"{address.name} is up to date, at version {now}")
    else:
        done = f"was brought from version {before} to" if before else "now has tables of version"
        terminal.record(f"{address.name} {done} {now}")
    return COMPLETED


def _copy(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    sides = [StoreAddress.parse(each, os.environ) for each in (options.source, options.target)]
    for text, side in zip((options.source, options.target), sides, strict=True):
        if side.url == text and clean(text) != text:
            advice = f"others can read the password of {side.name} while this runs; use env:NAME"
            terminal.line(f"warning: {advice}", Style.WARN)
    if options.tenant is not None:
        check_tenant(options.tenant)
    copied = refused = incomplete = 0
    with SessionCopies.open(
        *sides,
        setup=setup,
        source_home=_folder(options.source_home),
        target_home=_folder(options.target_home),
        tenant=options.tenant,
        allows_missing=options.incomplete,
    ) as copies:
        home = copies.target_home
        for done in copies.copy(options.ids):
            _show(done, terminal, clean, as_json=options.json)
            copied, refused = copied + (done.error is None), refused + (done.error is not None)
            incomplete += bool(done.missing)
    if not options.json:
        what = f"{copied} copied" + (f", {incomplete} of them incomplete" if incomplete else "")
        terminal.line(what + (f", {refused} not" if refused else ""))
        if copied and sides[1].path is not None and sides[1].path.parent != home:
            terminal.line(f"their artifacts and snapshots are in {clean(str(home))}")
    return FAILED if refused else COMPLETED


def _folder(name: str | None) -> Path | None:
    return None if name is None else Path(name).expanduser().resolve()


def _show(done: CopiedSession, terminal: Terminal, clean: Clean, *, as_json: bool) -> None:
    if as_json:
        shown = {
            "session_id": done.session_id,
            "is_copied": done.error is None,
            "missing": done.missing,
            "error": done.error and {"code": done.error.code, "message": clean(done.error.message)},
        }
        terminal.record(json.dumps(shown, ensure_ascii=False))
    elif done.error is not None:
        terminal.line(f"error: {shown_error(clean(done.error.message))}", Style.BAD)
    else:
        terminal.record(clean(done.session_id))
        if done.missing:
            lost = f"{done.session_id} is copied without {' and '.join(done.missing)}"
            terminal.line(clean(lost), Style.WARN)
