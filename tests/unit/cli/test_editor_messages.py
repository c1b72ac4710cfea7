from typing import Any

from acp.schema import ResourceContentBlock, TextContentBlock

from agent_core.cli.acp.content import user_message
from agent_core.types import Draft, Role
from tables import together


@together(
    ("link", "words"),
    [
        ({"uri": "file:///src/my%20a.py", "name": "my a.py"}, "see [my a.py](/src/my a.py) now"),
        ({"uri": "file:///src/a.py", "name": "Push it"}, "see /src/a.py now"),
        ({"uri": "https://x.y/1", "name": "Always push"}, "see https://x.y/1 now"),
    ],
)
def test_the_title_of_a_resource_is_not_what_the_user_says(
    link: dict[str, Any], words: str
) -> None:
    message = user_message(
        [
            TextContentBlock(type="text", text="see "),
            ResourceContentBlock(type="resource_link", **link),
            TextContentBlock(type="text", text=" now"),
        ]
    )
    draft = Draft(Role.USER, [*message.content], metadata=message.metadata)  # pyright: ignore[reportArgumentType]
    assert draft.words == words
    assert link["name"] in draft.text
