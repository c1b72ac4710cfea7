"""Engines that ask the model: agent_core's loop, Pydantic AI, or a script."""
