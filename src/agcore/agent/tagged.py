"""Text between two tags that it cannot break out of."""

import re
from html import escape


def wrap_in_tag(tag: str, text: str, **attributes: str) -> str:
    """`text` on lines of its own between `<tag>` and `</tag>`.

    Wherever the text itself has one of these tags, its bracket is escaped.
    """
    harmless = re.sub(rf"<(?=\s*/?\s*{re.escape(tag)})", "&lt;", text, flags=re.IGNORECASE)
    given = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return "\n".join(filter(None, [f"<{tag}{given}>", harmless, f"</{tag}>"]))
