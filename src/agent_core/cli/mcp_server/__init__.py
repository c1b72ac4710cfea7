"""`soong-agent mcp serve`: the agent as a server of the Model Context Protocol."""
