"""`soong-agent chat`: a conversation on a terminal, message by message."""
