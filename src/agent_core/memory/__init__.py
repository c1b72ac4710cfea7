"""Long-term memory of a user, beyond one session: Markdown files in the user's own home.

Extraction reads conversations and writes files; recall reads files and writes nothing. Models are
called through `AskModel`; no other process is needed, and no agent can write here.
"""
