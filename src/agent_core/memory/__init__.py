"""What is remembered about a user beyond one session: Markdown files of the user's own home.

Extraction reads conversations and writes files, recall reads files and writes nothing. Models are
asked through `AskModel`; no other process is needed, and no agent can write here.
"""
