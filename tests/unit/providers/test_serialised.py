import gc

import orjson

from agent_core.context.messages import plain_text
from agent_core.providers.requests import IdentityCache, body_of
from agent_core.types import ModelMessage, Role, TextBlock, ToolCallBlock


def message(text: str) -> ModelMessage:
    return ModelMessage(role=Role.USER, content=[TextBlock(text=text)])


def test_an_object_is_serialised_once() -> None:
    made: list[ModelMessage] = []
    kept: IdentityCache[ModelMessage, bytes] = IdentityCache()
    hello = message("hello")

    def write(item: ModelMessage) -> bytes:
        made.append(item)
        return b"x"

    assert kept.get(hello, write) is kept.get(hello, write)
    kept.get(message("hello"), write)
    assert len(made) == 2


def test_what_is_kept_dies_with_its_object() -> None:
    kept: IdentityCache[ModelMessage, bytes] = IdentityCache()
    for number in range(1000):
        text = str(number).encode()
        assert kept.get(message(str(number)), lambda _, text=text: text) == text
    gc.collect()

    assert len(kept) == 0


def test_of_a_history_only_what_is_new_is_serialised() -> None:
    made: list[ModelMessage] = []
    kept: IdentityCache[ModelMessage, bytes] = IdentityCache()
    first, second, third = map(message, "123")

    def write(item: ModelMessage) -> bytes:
        made.append(item)
        return plain_text(item.content).encode()

    def written(*history: ModelMessage) -> bytes:
        return b"".join(kept.get_all(history, write))

    assert written(first, second) == b"12"
    assert written(first, second, third) == b"123"
    assert written(first, third) == b"13"
    assert written(message("1"), second) == b"12"
    assert len(made) == 4


def test_of_a_replaced_message_the_new_one_is_serialised() -> None:
    kept: IdentityCache[ModelMessage, bytes] = IdentityCache()
    first, second, third = map(message, "123")

    def written(*history: ModelMessage) -> list[bytes]:
        return kept.get_all(history, lambda item: plain_text(item.content).encode())

    assert written(first, second, third) == [b"1", b"2", b"3"]
    assert written(first, message("x"), third) == [b"1", b"x", b"3"]
    assert written(message("y"), second, third) == [b"y", b"2", b"3"]
    assert written(first) == [b"1"]
    assert written() == []


def test_what_is_done_with_a_list_does_not_change_the_next_one() -> None:
    kept: IdentityCache[ModelMessage, bytes] = IdentityCache()
    history = [message("1")]

    kept.get_all(history, lambda _: b"1").append(b"2")

    assert kept.get_all(history, lambda _: b"1") == [b"1"]


def test_a_longer_history_begins_with_the_same_bytes() -> None:
    short = body_of({"b": 1, "a": 2}, {"tools": [b"{}"], "messages": [b"1", b"", b"2"]})
    longer = body_of({"a": 2, "b": 1}, {"tools": [b"{}"], "messages": [b"1", b"2", b"3"]})

    assert orjson.loads(short) == {"a": 2, "b": 1, "tools": [{}], "messages": [1, 2]}
    assert longer.startswith(short.removesuffix(b"]}"))


def test_empty_arrays_are_left_out() -> None:
    assert body_of({"a": 1}, {"tools": []}) == b'{"a":1}'


def test_equal_messages_in_the_middle_are_not_taken_for_those_before() -> None:
    def calling(argument: object) -> ModelMessage:
        call = ToolCallBlock(tool_call_id="c", name="x", arguments={"n": argument})
        return ModelMessage(role=Role.ASSISTANT, content=[call])

    def write(item: ModelMessage) -> bytes:
        return orjson.dumps(item.model_dump(mode="json"))

    kept: IdentityCache[ModelMessage, bytes] = IdentityCache()
    first, last, one, true = message("a"), message("b"), calling(1), calling(True)
    assert one == true  # as `1 == True`
    kept.get_all([first, one, last], write)

    assert kept.get_all([first, true, last], write)[1] == write(true)
    assert kept.get_all([first, one, last, first], write)[1] == write(one)
