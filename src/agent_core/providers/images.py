"""Selects the pictures and documents to send to a service, and replaces the rest by text."""

from collections.abc import Iterable, Sequence, Set as AbstractSet
from itertools import chain

from agent_core.errors import ErrorCode
from agent_core.providers.failures import Called
from agent_core.providers.requests import IdentityCache, block_text
from agent_core.providers.token_limits import HTTP_TOO_LARGE
from agent_core.types import (
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    ModelMessage,
    ModelRequest,
    Role,
    TextBlock,
    ToolResultBlock,
)

DOCUMENTS = "documents"
IMAGES = "images"
KINDS = frozenset({DOCUMENTS, IMAGES})
_IMAGE_REFUSALS = {400, 413, 415, 422}


def kind_of(block: ImageBlock) -> str:
    """Return the capability that a model needs to be shown the block."""
    return DOCUMENTS if block.is_document else IMAGES


class ImageRules:
    """Selects what one service is shown, and learns from its refusals.

    The user's newest message is shown whole or not sent at all: an answer without it would be about
    something else. Older pictures, and those in results, may be replaced by text, so that a
    conversation can continue after a model has refused one.

    Args:
        supports_images: the configured value; None if it is not known yet.
        takes_documents: the service's protocol has a form for documents.
        shows_results: pictures in results are shown.
    """

    def __init__(
        self,
        *,
        supports_images: bool | None,
        takes_documents: bool = True,
        shows_results: bool = True,
    ) -> None:
        self._may_learn = supports_images is None
        self._missing: AbstractSet[str] = frozenset() if takes_documents else {DOCUMENTS}
        if supports_images is False:
            self._missing = KINDS
        self._worded: AbstractSet[str] = frozenset()
        self._shows_results = shows_results
        self._has_pictures: IdentityCache[ModelMessage, bool] = IdentityCache()

    def require_newest(self, request: ModelRequest, called: Called) -> None:
        """Return if the user's newest message can be sent.

        Raises:
            ProviderError: `unsupported_capability`: the model is known not to accept its content.
        """
        if not self._missing:
            return
        for kind in sorted(_kinds(_newest(request.messages)) & self._missing):
            raise called.unsupported(
                kind, f"this model takes no {kind}; send text, or choose a model that takes them"
            )

    def apply(self, request: ModelRequest) -> ModelRequest:
        """Return the request with text in place of everything the service has refused so far."""
        hidden = self._missing | self._worded
        in_results = hidden if self._shows_results else KINDS
        if not in_results or not any(self._has_pictures.get_all(request.messages, _has_pictures)):
            return request  # true of nearly all requests, however long
        return _worded(request, hidden, in_results=in_results)

    def reduced(self, request: ModelRequest, refusal: ErrorPayload) -> ModelRequest | None:
        """Return the request without pictures that may be refused; None if there are none.

        A refusal that names the capability applies to all later requests.
        """
        hidden = _refused_kinds(refusal)
        if self._may_learn and refusal.details.get("capability") in hidden:
            self._missing = self._missing | hidden
            if _kinds(_newest(request.messages)) & hidden:
                return None
        reduced = _worded(request, hidden, in_results=hidden)
        return None if reduced is request else reduced

    def learn(self, refusal: ErrorPayload) -> None:
        """Keep older pictures replaced by text, which the service accepted."""
        self._worded = self._worded | _refused_kinds(refusal)


def _newest(messages: Sequence[ModelMessage]) -> ModelMessage | None:
    for message in reversed(messages):
        if message.role is Role.USER and not message.metadata.get("synthetic"):
            return message
    return None


def _has_pictures(message: ModelMessage) -> bool:
    results = (block.content for block in message.content if isinstance(block, ToolResultBlock))
    return any(isinstance(block, ImageBlock) for block in chain(message.content, *results))


def _kinds(message: ModelMessage | None) -> set[str]:
    blocks = message.content if message else ()
    return {kind_of(block) for block in blocks if isinstance(block, ImageBlock) and block.data}


def _worded(
    request: ModelRequest, hidden: AbstractSet[str], *, in_results: AbstractSet[str]
) -> ModelRequest:
    """Replace hidden pictures by text; returns the same request if there are none."""
    if not hidden and not in_results:
        return request
    newest = _newest(request.messages)
    messages = [
        message if message is newest else _without(message, hidden, in_results)
        for message in request.messages
    ]
    if all(new is old for new, old in zip(messages, request.messages, strict=True)):
        return request
    return request.model_copy(update={"messages": messages})


def _without(
    message: ModelMessage, hidden: AbstractSet[str], in_results: AbstractSet[str]
) -> ModelMessage:
    content = list(_in_words(message.content, hidden))
    for place, block in enumerate(content):
        if isinstance(block, ToolResultBlock):
            inner = list(_in_words(block.content, in_results))
            if inner != block.content:
                content[place] = block.model_copy(update={"content": inner})
    if all(new is old for new, old in zip(content, message.content, strict=True)):
        return message
    return message.model_copy(update={"content": content})


def _in_words(blocks: Iterable[ContentBlock], hidden: AbstractSet[str]) -> Iterable[ContentBlock]:
    for block in blocks:
        if isinstance(block, ImageBlock) and block.data and kind_of(block) in hidden:
            yield TextBlock(text=f"{block_text(block)[:-1]}; this model was not shown it]")
        else:
            yield block


def _refused_kinds(error: ErrorPayload) -> AbstractSet[str]:
    """Return the kinds of content that may have caused a refusal; services do not always say."""
    capability, status = error.details.get("capability"), error.details.get("status")
    if capability is not None:
        return KINDS & {capability}
    too_large = error.code is ErrorCode.PROMPT_TOO_LONG and status == HTTP_TOO_LARGE
    is_possible = error.code is ErrorCode.PROVIDER_ERROR and status in _IMAGE_REFUSALS
    return KINDS if too_large or is_possible else frozenset()
