"""Conversations on pages: the parts of a session's page, with what can be done about them."""

from collections.abc import Sequence
from datetime import datetime

from agent_core.history.page import SessionParts, diff_block, status_mark
from agent_core.history.reading import CallEntry, Entry, Exchange, History
from agent_core.history.tree import Branch
from agent_core.serve.pages.frame import Frame
from agent_core.text.pages import fold, plain, preformatted
from agent_core.types import ApprovalRecord, ImageBlock, NodeType, Role, RunRecord, RunStatus

_MOST_FILES = 50


def is_over(run: RunRecord | None) -> bool:
    """Return whether nothing more happens in a run."""
    return run is None or run.status.is_terminal


class ConversationParts(SessionParts):
    """Writes the parts of a session for pages of the console.

    Args:
        frame: the request.
        history: the session, or a part of it.
    """

    def __init__(self, frame: Frame, history: History) -> None:
        super().__init__(history, str, frame.say)
        self._frame = frame

    def moment(self, moment: datetime) -> str:
        """Return a time as HTML."""
        return self._frame.moment(moment)

    def image_source(self, block: ImageBlock) -> str | None:
        """Return the address of an image that may be shown, or None."""
        if block.artifact_id is not None and not block.is_document:
            return self._frame.address("api", "artifacts", block.artifact_id)
        return super().image_source(block)

    def call_id(self, entry: CallEntry) -> str:
        """Return the attribute with the id of a call's block."""
        return f' id="call-{plain(entry.key)}"' if entry.key else ""

    def is_call_open(self, entry: CallEntry) -> bool:
        """Return whether a call is unfolded at first: also while it works, and with children."""
        return super().is_call_open(entry) or entry.call.ended is None or bool(entry.children)

    def begin(self, exchange: Exchange, place: str, *, in_call: bool) -> None:
        """Open the block of a run; its entries have a place of their own, to be followed."""
        super().begin(exchange, place, in_call=in_call)
        self.write(f'<div id="{_key(exchange)}-entries">')

    def run_label(self, exchange: Exchange, place: str) -> str:
        """Return the line of a run."""
        label = super().run_label(exchange, place)
        return f'<span id="{_key(exchange)}-head">{label}</span>'

    def unseen(self, exchange: Exchange, prompt: str) -> None:
        """Write a prompt that no model has seen, in a place of its own: its message follows."""
        self.write(f'<div id="{_key(exchange)}-unseen">')
        super().unseen(exchange, prompt)
        self.write("</div>")

    def begin_call(self, entry: CallEntry) -> None:
        """Open the block of a call; below an open one its output is followed."""
        super().begin_call(entry)
        if entry.call.ended is None and entry.key:
            self.write(f'<div id="output-{plain(entry.key)}"></div>')

    def end(self, exchange: Exchange) -> None:
        """Close the block of a run, with its files and what can be done with it."""
        self.write("</div>")
        self.write(f'<div id="{_key(exchange)}-foot">{self.foot(exchange)}</div>')
        super().end(exchange)

    def foot(self, exchange: Exchange) -> str:
        """Return what is shown below the entries of a run."""
        run, say, frame = exchange.run, self.say, self._frame
        if run is None:
            return ""
        parts: list[str] = []
        if run.parent_run_id is not None or not is_over(run):
            url = frame.address("runs", run.run_id)
            word = say("Open this run") if is_over(run) else say("Follow this run")
            parts.append(f'<p><a href="{url}">{word}</a></p>')
        if run.parent_run_id is not None:
            return "".join(parts)
        if files := changed_files(exchange):
            parts.append(self._files(run, files))
        if is_over(run):
            parts.append(self._acts(exchange, run))
        return "".join(parts)

    def _files(self, run: RunRecord, files: dict[str, tuple[int, int]]) -> str:
        say = self.say
        items = [
            f'<li><code>{plain(path)}</code> <span class="good">+{added:,}</span>'
            f' <span class="bad">-{removed:,}</span></li>'
            for path, (added, removed) in list(files.items())[:_MOST_FILES]
        ]
        if (more := len(files) - _MOST_FILES) > 0:
            items.append(f"<li>{say.count(more, 'more file')}</li>")
        url = self._frame.address("runs", run.run_id, "changes")
        label = say.count(len(files), "changed file")
        return (
            f'<details class="files"><summary>{label}</summary><ul>{"".join(items)}</ul>'
            f'<p><a href="{url}">{say("All changes of this run")}</a></p></details>'
        )

    def _acts(self, exchange: Exchange, run: RunRecord) -> str:
        frame, say = self._frame, self.say
        if not frame.may("run"):
            return ""
        session_id = run.session_id
        forms: list[str] = []
        last = _last_answer(exchange)
        if exchange is self._undoable:
            undo = frame.address("sessions", session_id, "undo")
            forms.append(frame.form(undo, say("Undo this message and its changes")))
        if last is not None:
            fork = frame.address("sessions", session_id, "fork")
            forms.append(frame.form(fork, say("Fork here"), hidden={"node_id": last}))
            if last != self.history.session.active_node_id:
                switch = frame.address("sessions", session_id, "switch")
                forms.append(frame.form(switch, say("Continue here"), hidden={"node_id": last}))
        return f'<div class="acts">{"".join(forms)}</div>' if forms else ""

    async def moves(self) -> str:
        """Return the buttons of the session that have something to do, as HTML."""
        frame, session_id = self._frame, self.history.session.session_id
        if not frame.may("run"):
            return ""
        visit, own = frame.visit, ("sessions", session_id)
        state = await visit.runtime.undo_state(session_id, tenant=visit.tenant)
        forms: list[str] = []
        if state.can_undo:
            forms.append(frame.form(frame.address(*own, "undo"), self.say("Undo")))
        if state.can_redo:
            forms.append(frame.form(frame.address(*own, "redo"), self.say("Redo")))
        return "".join(forms)

    @property
    def _undoable(self) -> Exchange | None:
        """The run that an undo would revert: the one of the last message on the active path."""
        active = self.history.active
        if self.history.session.active_node_id not in active:  # the path continues below this part
            return None
        for exchange in reversed(self.history.exchanges):
            nodes = [node for node in exchange.nodes if node.node_id in active]
            if any(node.is_prompt for node in nodes) or (nodes and exchange.is_cut):
                return exchange
        return None

    def leaf_actions(self, branch: Branch) -> str:
        """Return what can be done with a message of the tree."""
        frame, node = self._frame, branch.node
        if not frame.may("run") or node.node_id in self.history.active:
            return ""
        switch = frame.address("sessions", node.session_id, "switch")
        files = frame.form(
            switch,
            self.say("Switch, with the files"),
            hidden={"node_id": node.node_id, "restore_files": "1"},
        )
        plainly = frame.form(switch, self.say("Switch here"), hidden={"node_id": node.node_id})
        return f'<div class="acts">{plainly}{files}</div>'

    def entry(self, entry: Entry) -> str:
        """Return one entry of a run."""
        self.write_entry(entry)
        return self.taken()

    def exchange(self, exchange: Exchange, place: str = "") -> str:
        """Return the block of a run."""
        self.write_exchange(exchange, place)
        return self.taken()

    # --- questions --------------------------------------------------------------------------------

    def questions(self, records: Sequence[ApprovalRecord]) -> str:
        """Return the open questions of a session."""
        return question_list(self._frame, records)

    def question_place(self, records: Sequence[ApprovalRecord]) -> str:
        """Return the place of the open questions on a page, with those that there are."""
        label = self.say("Open questions")
        body = self.questions(records)
        return f'<section id="questions" aria-label="{label}" aria-live="polite">{body}</section>'

    @property
    def _at_work(self) -> RunRecord | None:
        """The run that is not over, rather than those that wait behind it."""
        runs = [each.run for each in self.history.exchanges if not is_over(each.run)]
        begun = (each for each in runs if each is not None and each.status != RunStatus.QUEUED)
        return next(begun, None) or next(reversed(runs), None)

    def status(self, *, is_asked: bool) -> str:
        """Return what the session does now; with an open question, it leads there."""
        runs = [each.run for each in self.history.exchanges if each.run is not None]
        run = self._at_work or next(reversed(runs), None)
        if is_over(run) or not is_asked:
            return status_mark(self.say, "new" if run is None else str(run.status))
        said = self.say("waits for an answer")
        return f'<p class="status fair"><a href="#questions">{said}</a></p>'

    def stop(self) -> str:
        """Return the form that stops the run at work; empty if none works, or stops with it."""
        run = self._at_work
        if run is None or run.parent_run_id is not None or not self._frame.may("run"):
            return ""
        url = self._frame.address("runs", run.run_id, "cancel")
        return self._frame.form(url, self.say("Stop"), kind="bad")


async def open_questions(frame: Frame, session_id: str) -> Sequence[ApprovalRecord]:
    """Return the open questions of a session."""
    visit = frame.visit
    return await visit.runtime.approvals(session_id, tenant=visit.tenant)


def question_list(frame: Frame, records: Sequence[ApprovalRecord]) -> str:
    """Return questions as a list of links to their pages, with the answers that need no page."""
    items = "".join(f'<li class="question">{question_line(frame, each)}</li>' for each in records)
    return f'<ul class="list">{items}</ul>' if items else ""


def question_line(frame: Frame, record: ApprovalRecord) -> str:
    """Return a question as HTML: what would be done, where, and the quick answers."""
    request, say = record.request, frame.say
    target = str(request.metadata.get("lines") or request.metadata.get("target") or "")
    url = frame.address("approvals", record.request_id)
    label = say("{tool} asks for permission", tool=record.tool_name)
    parts = [
        f'<a href="{url}">{plain(label)}</a>',
        preformatted(target or request.args_summary),
    ]
    if diff := str(request.metadata.get("diff") or ""):
        parts.append(fold(say("Changes"), diff_block(diff)))
    when = frame.moment(record.asked_at)
    parts.append(f'<p class="muted">{plain(request.cwd)} · {when}</p>')
    if frame.may("answer"):
        allow = frame.form(url, say("Allow once"), hidden={"decision": "allow_once"}, kind="main")
        deny = frame.form(url, say("Deny"), hidden={"decision": "deny"}, kind="bad")
        parts.append(f'<div class="acts">{allow}{deny}</div>')
    return "".join(parts)


def changed_files(exchange: Exchange) -> dict[str, tuple[int, int]]:
    """Return the files that the calls of a run have changed, with lines added and removed."""
    found: dict[str, tuple[int, int]] = {}
    for entry in exchange.entries:
        if isinstance(entry, CallEntry):
            _count_changes(entry, found)
    for child in exchange.every_child:
        for path, (added, removed) in changed_files(child).items():
            before = found.get(path, (0, 0))
            found[path] = before[0] + added, before[1] + removed
    return found


def _count_changes(entry: CallEntry, found: dict[str, tuple[int, int]]) -> None:
    call = entry.call
    if not call.end.diff or call.outcome != "completed":
        return
    paths = call.started.paths if call.started is not None else ()
    path = paths[0].path if paths else call.summary
    lines = [line for line in call.end.diff.split("\n") if not line.startswith(("+++", "---"))]
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    before = found.get(path, (0, 0))
    found[path] = before[0] + added, before[1] + removed


def _key(exchange: Exchange) -> str:
    return plain(exchange.run_id or "outside")


def _last_answer(exchange: Exchange) -> str | None:
    """Return the id of the last complete answer of a run, where a conversation can continue."""
    if exchange.run is None or exchange.run.status is not RunStatus.COMPLETED:
        return None
    for node in reversed([*exchange.nodes]):
        is_answer = node.role is Role.ASSISTANT and node.node_type is NodeType.MESSAGE
        if is_answer and not node.calls and not node.is_partial:
            return node.node_id
    return None
