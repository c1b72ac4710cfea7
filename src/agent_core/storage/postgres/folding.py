"""A function of the database that folds text as Python does.

Search compares `folded(content_json)` with `LIKE`. A function, because a folded copy of each text
would double the space, and `ILIKE` folds by the rules of the database's language: never `ß` or `İ`,
and in the language `C` only the letters of English. An index of the function's results stores no
text twice, and a search without an index takes about as long as one with `ILIKE`.
"""

import json
from typing import LiteralString, cast

from agent_core.text.folding import ESCAPED, IOTA

FOLDED: LiteralString = "folded(text)"
"""The function's signature."""

_NO_CASE = 0x20000
"""No character from here on has a case."""


def folding_script() -> LiteralString:
    """Return the statement that creates the function `folded`."""
    signs = [sign for sign in map(chr, range(0x80, _NO_CASE)) if sign.casefold() != sign]
    folds = json.dumps({sign: sign.casefold() for sign in signs}, ensure_ascii=False)
    escape = ESCAPED.replace("00[01]", "00[01]|d[89a-f]")  # Postgres has no lone surrogates
    script = f"""CREATE OR REPLACE FUNCTION folded(given TEXT) RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    -- It calls no function of ours: building an index does not search their schema.
    result TEXT COLLATE "C" := '';
    part TEXT COLLATE "C" := given;
    sign TEXT COLLATE "C";
BEGIN
    LOOP
        IF octet_length(part) = length(part) THEN
            part := lower(part);
        ELSE
            IF part ~ '{IOTA}' THEN
                part := normalize(part, NFD);
            END IF;
            part := lower(part);
            FOR sign IN SELECT DISTINCT match[1]
                FROM regexp_matches(part, '([{_ranges(signs)}])', 'g') AS match
            LOOP
                part := replace(part, sign, CAST('{folds}' AS JSONB) ->> sign);
            END LOOP;
            IF part IS NOT NFC NORMALIZED THEN
                part := normalize(part, NFC);
            END IF;
        END IF;
        IF result <> '' THEN
            RETURN result || chr(10) || part;
        END IF;
        result := part;
        IF strpos(part, '\\u') = 0 OR part !~ '{escape}' THEN
            RETURN result;
        END IF;
        FOR sign IN SELECT DISTINCT match[1] FROM regexp_matches(part, '({escape})', 'g') AS match
        LOOP
            part := replace(
                part, sign, chr(CAST(CAST('x' || substr(sign, 3) AS BIT(16)) AS INTEGER)));
        END LOOP;
    END LOOP;
END $$"""  # noqa: S608 - our own words
    return cast("LiteralString", script)


def _ranges(signs: list[str]) -> str:
    """Return the signs as ranges of a regular expression."""
    found: list[list[str]] = []
    for sign in signs:
        if found and ord(sign) == ord(found[-1][1]) + 1:
            found[-1][1] = sign
        else:
            found.append([sign, sign])
    return "".join(first if first == last else f"{first}-{last}" for first, last in found)
