"""Files kept beside a session, because they are too large or too raw for a message."""
