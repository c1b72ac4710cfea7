"""Sentences in which a user sets a rule: they are carried over a compaction word for word."""

import re
from collections.abc import Iterator

LONGEST = 300
"""Characters of one statement."""

_SENTENCE_END = re.compile(r"(?<=[.!?;])[\s\"')\]]+|(?<=[\u3002\uff01\uff1f\uff1b])|[\r\n]+")
_LIST_MARK = re.compile(r"\A(?:[-*+•>]|\d{1,3}[.)])\s+")
_MARK = r"['`\u00b4\u02bc\u2018\u2019]"
_ENGLISH = (
    rf"always|never|must|mustn{_MARK}?t|don{_MARK}?t|do\s+not|shall|shan{_MARK}?t|should\s+not|"
    rf"shouldn{_MARK}?t|can\s?not|can{_MARK}t|may\s+not|make\s+sure|be\s+sure|ensure|avoid|"
    r"from\s+now\s+on|at\s+all\s+times|under\s+no\s+circumstances|no\s+matter\s+what|"
    r"forbidden|prohibited|not\s+allowed|required|only\s+use|use\s+only|prefer|remember|"
    r"insist|every\s+time|without\s+exception|refrain|stop|no\s+longer|mandatory"
)
_CHINESE = (
    r"必须|必需|不要|不得|不许|不准|不可|不能|不应|禁止|严禁|务必|一定要|永远|永不|总是|始终|一律|"
    r"绝不|绝对不|切勿|请勿|切记|"
    r"(?<![特分级級类類区區差告个個性辨识識])[别別](?![的人处處名墅])|勿|只能|只许|只准|只用|"
    r"从现在起|从今以后|今后|以后都|"
    r"以后请|记住|每次都|应当|应该|無論|無须|必須|總是|絕不|請勿|從現在起"
)
_RULE = re.compile(rf"\b(?:{_ENGLISH})\b|{_CHINESE}", re.IGNORECASE)


def rule_statements(text: str) -> list[str]:
    """The sentences of `text` that set a rule, in order, each at most `LONGEST` characters."""
    return list(_statements(text))


def _statements(text: str) -> Iterator[str]:
    for sentence in _SENTENCE_END.split(text):
        statement = _LIST_MARK.sub("", " ".join(sentence.split()))
        if found := _RULE.search(statement):
            yield _around(statement, found.start())


def _around(statement: str, place: int) -> str:
    """A sentence without end, cut to the part that holds the rule."""
    if len(statement) <= LONGEST:
        return statement
    start = max(0, min(place - LONGEST // 3, len(statement) - LONGEST))
    return statement[start : start + LONGEST].strip()
