"""Let one agent ask another."""

from library import MODEL, Library, librarian

from agcore import Agent, Budget

host = Agent(
    "host",
    "You welcome visitors, and ask the librarian about books.",
    model=MODEL,
    tools=[librarian.as_tool()],
    deps_type=Library,
    budget=Budget(requests=10),
)
result = host.run_sync("Hello! I would like to read Emma.", deps=Library(copies={"Emma": 2}))
print(result.output)
