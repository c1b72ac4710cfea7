"""OpenAI's interfaces, so that its clients can talk to agents: models, chat and responses."""
