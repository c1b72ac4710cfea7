"""What talks to the model: agent_core's loop, Pydantic AI, or a script."""
