"""One compaction: summarise piece by piece, put the kept facts in front, check the result."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from string import Template
from typing import Any, Protocol, cast

from msgspec import Struct

from agent_core.assets import load_asset
from agent_core.compact.cut import Cut
from agent_core.compact.kept import KeptFacts, collect_kept, escape_kept, fit_kept, render_kept
from agent_core.compact.transcript import render_transcript, split_transcript
from agent_core.errors import ErrorCode, SchemaError
from agent_core.providers.jsontext import unfenced
from agent_core.text import estimate_text, join_surrogates, quoted, short_line
from agent_core.text.json_text import JsonObject
from agent_core.text.quotes import without_quotes
from agent_core.types import Draft, Node, NodeType, is_user_message, user_text

_CUT = "\n[the summary was cut here: it was longer than allowed]"
_LEAST_CHARS, _LEAST_WORDS, _LEAST_LETTERS = 40, 4, 4
_MOST_CHECKED = 20_000
_SAMPLES, _SAMPLE_CHARS = 3, 120
_WORD = re.compile(r"[^\W\d_]+")
_DENSE = re.compile(
    "["
    "\u0e00-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
    "\u3005-\u3007\u3040-\u312f\u31f0-\u31ff\uff66-\uff9f"  # Japanese, Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese
    "\uac00-\ud7a3"  # Korean, whose signs are syllables
    "]+"
)
"""Signs of scripts that put no spaces between words, or of syllables."""
_OBJECT = re.compile(r"""\{\s*["}]""")
_MOST_OBJECTS = 20
_DECODER = json.JSONDecoder(strict=False)
_BROKEN = re.compile(r"""\{\s*"summary"\s*:\s*"(.*)\Z""", re.DOTALL)
_END = re.compile(r"""(?<!\\)((?:\\\\)*)"\s*(?:[,}][^"]*)?\Z""")
"""The quote that ends a string at the end of a text, with the escaped backslashes before it."""
_ESCAPES = re.compile(
    r"""(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))+|(?P<cut>\\(?:u[0-9a-fA-F]{0,3})?\Z)"""
)


class Summarise(Protocol):
    """Asks a model for a summary of a text, without tools and without history."""

    async def __call__(self, prompt: str, *, max_tokens: int) -> str:
        """Return the answer, of about `max_tokens` tokens at most.

        Raises:
            AgentCoreError: there is no answer; the error gives the reason.
        """
        ...


StoreText = Callable[[str], Awaitable[str]]
"""Stores a text beside the session and returns the artifact's id."""

OpenPlans = Callable[[Sequence[Node]], Sequence[Node]]
"""Returns the plan and task instructions of a path that have not been acted on."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits in estimated tokens: of the summary, of the kept facts, and of a piece at a time."""

    summary: int
    kept: int
    piece: int


class Compaction(Struct, frozen=True, kw_only=True):
    """A compaction that may be written.

    Attributes:
        draft: the node; its `details` record how it was made.
        tokens: the size of the node, in estimated tokens.
    """

    draft: Draft
    tokens: int


class HistoryCompactor:
    """Makes compactions of one path; needs no runtime.

    Args:
        summarise: asks the model.
        store: stores facts that no longer fit into the `<kept>` part.
        open_plans: asked about the whole path.
        focus: what the user wants a summary to pay attention to.
    """

    def __init__(
        self,
        summarise: Summarise,
        *,
        store: StoreText,
        open_plans: OpenPlans = lambda _: (),
        focus: str = "",
    ) -> None:
        self._summarise = summarise
        self._store = store
        self._open_plans = open_plans
        self._focus = focus

    async def compact(
        self,
        path: Sequence[Node],
        cut: Cut,
        limits: Limits,
        *,
        changed: Sequence[str] = (),
        read: Sequence[Node] | None = None,
        noted: Mapping[str, str] | None = None,
    ) -> Compaction:
        """Summarise the nodes before the cut.

        Args:
            path: the conversation, root first.
            cut: where to cut it.
            limits: of the parts of the result.
            changed: files known to have changed, besides the files that tools have written.
            read: the same nodes as the model reads them, where it is shown less.
            noted: added to the details.

        Raises:
            SchemaError: the answer holds no summary, or the result lacks a kept fact, or is longer
              than the nodes it replaces.
            AgentCoreError: the model failed, or the artifact could not be stored.
        """
        kept, rest = await asyncio.to_thread(
            lambda: fit_kept(collect_kept(path, self._open_plans(path), changed), limits.kept)
        )
        summary = await self._summary(path if read is None else read, cut, limits)
        artifact_id = await self._store(rest) if rest else None
        text = f"{render_kept(kept, artifact_id)}\n\n{summary}"
        tokens = estimate_text(text)
        _check(text, kept, artifact_id, tokens=tokens, replaced=cut.replaced_tokens)
        metadata: JsonObject = {
            "summary": summary,
            "first_kept_node_id": path[cut.end].node_id,
            "tokens_before": cut.tokens_before,
            "details": {
                "kept": kept.details(artifact_id),
                **(noted or {}),
                "changed_files": list(changed),
                "covered_node_id": path[-1].node_id,
                "previous_compaction_id": cut.previous.node_id if cut.previous else None,
                "split_turn": cut.turn < cut.end,
            },
        }
        return Compaction(draft=user_text(text, NodeType.COMPACTION, **metadata), tokens=tokens)

    async def _summary(self, path: Sequence[Node], cut: Cut, limits: Limits) -> str:
        """Return the summary; the beginning of a turn cut in two is summarised separately."""
        earlier = str(cut.previous.metadata.get("summary", "")) if cut.previous else ""
        before, begun = path[cut.start : cut.turn], path[cut.turn : cut.end]
        if earlier and not before:  # the turn's beginning is already in the earlier summary
            before, begun = begun, before
        most = limits.summary // 2 if before and begun else limits.summary
        spoken = sample_words(path, cut)
        asked: dict[str, Any] = {"most": most, "piece": limits.piece, "spoken": spoken}
        summary = await self._summarise_part("history", before, earlier, **asked)
        if not begun:
            return summary
        turn = await self._summarise_part("turn", begun, "", **asked)
        return f"{summary}\n\n# The turn under way, so far\n\n{turn}" if before else turn

    async def _summarise_part(
        self, part: str, nodes: Sequence[Node], earlier: str, *, most: int, piece: int, spoken: str
    ) -> str:
        """Summarise a part of the path, each piece together with the summary so far."""
        summary = earlier
        texts = split_transcript(render_transcript(nodes), piece)
        template = Template(load_asset(f"system.compact_{part}").text)
        focus = ""
        if self._focus:
            text = load_asset("system.compact_focus").text
            focus = f"\n{Template(text).substitute(focus=self._focus)}"
        for number, text in enumerate(texts, 1):
            prompt = template.substitute(
                earlier=summary or "(none)",
                part=f"{number} of {len(texts)}",
                words=max(most * 3 // 5, 40),
                spoken=spoken,
                focus=focus,
                conversation=text,
            )
            summary = summary_of(await self._summarise(prompt, max_tokens=most))
            cost = estimate_text(summary)
            if cost > most:
                size = max(len(summary) * most // cost - len(_CUT), 1)
                summary = summary[:size].rstrip() + _CUT
        return summary


def sample_words(path: Sequence[Node], cut: Cut) -> str:
    """Return the last words of the user in what a cut covers: they show the user's language."""
    covered = path[cut.start : cut.end]
    if not any(map(is_user_message, covered)):  # all of it works on an earlier message
        covered = path[: cut.end]
    said = (
        without_quotes(node.words).strip() for node in reversed(covered) if is_user_message(node)
    )
    lines = islice((short_line(words, _SAMPLE_CHARS) for words in said if words), _SAMPLES)
    return "\n".join(lines) or "(nothing)"


def _check(
    text: str, kept: KeptFacts, artifact_id: str | None, *, tokens: int, replaced: int
) -> None:
    """Refuse a compaction that loses a kept fact, or saves nothing.

    Raises:
        SchemaError: names the lost fact, or both sizes.
    """
    missing = [part for part in kept.texts() if escape_kept(part) not in text]
    if artifact_id is not None and artifact_id not in text:
        missing.append(artifact_id)
    if missing:
        message = f"the compaction lacks what had to be kept: {quoted(missing[0], 100)}"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
    if tokens >= replaced:
        message = f"the summary has {tokens} tokens, and what it would replace only {replaced}"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)


def summary_of(text: str) -> str:
    """Return the summary in an answer; other keys are ignored, plain text is the summary.

    JSON may be in a fence, in another object, behind a sentence, or cut off.

    Raises:
        SchemaError: there is none, it is too short, or it is not prose.
    """
    summary = join_surrogates(_find_summary(unfenced(text).strip()) or "").strip()
    if len(summary) + 2 * _count_dense(summary) < _LEAST_CHARS or not _is_prose(summary):
        message = f"the compact agent answered without a summary: {short_line(summary, 200)!r}"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
    return summary


def _count_dense(text: str) -> int:
    """Return the number of signs that say as much as three letters each."""
    return sum(map(len, _DENSE.findall(text, 0, _MOST_CHECKED)))


def _is_prose(text: str) -> bool:
    """Return whether a text is prose: enough words, different letters, and no markup."""
    signs = [sign for sign in text[:_MOST_CHECKED].casefold() if not sign.isspace()]
    letters = [sign for sign in signs if sign.isalpha()]
    words = len(_WORD.findall(text, 0, _MOST_CHECKED))
    is_page = text.lower().startswith(("<!doctype", "<html", "<?xml"))
    is_long_enough = words >= _LEAST_WORDS or 3 * _count_dense(text) >= _LEAST_CHARS
    has_letters = 3 * len(letters) >= len(signs) and len(set(letters)) >= _LEAST_LETTERS
    return is_long_enough and has_letters and not is_page


def _unescape(escapes: re.Match[str]) -> str:
    """Return the characters that escapes of JSON name; nothing for one that was cut off."""
    return "" if escapes["cut"] is not None else json.loads(f'"{escapes[0]}"')


def _find_summary(text: str) -> str | None:
    """Return the summary in an object that is most of an answer, or its end; or the answer."""
    is_json, broken = False, None
    for begin in islice(_OBJECT.finditer(text), _MOST_OBJECTS):
        try:
            value, end = _DECODER.raw_decode(text, begin.start())
        except (ValueError, RecursionError):  # cut off, or with an error after its beginning
            broken = broken or _BROKEN.match(text, begin.start())
            continue
        is_most = 2 * (end - begin.start()) >= len(text)
        is_json = is_json or is_most
        summary = cast("JsonObject", value).get("summary")
        if isinstance(summary, str) and (is_most or not text[end:].strip("`").strip()):
            return summary
    if is_json:
        return None
    if broken is not None and 2 * broken.start() <= len(text):
        rest = _END.sub(r"\1", broken[1])
        return _ESCAPES.sub(_unescape, rest)
    return None if _is_list(text) else text


def _is_list(text: str) -> bool:
    try:
        return text.startswith("[") and isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False
