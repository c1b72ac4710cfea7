"""Write the pages of `docs/reference/` from the docstrings and signatures of the three packages.

`make reference` runs it, and the suite fails if a page differs from what it would write. The source
is read, not imported. The names of `agent_core` are put on pages here, by hand; the other packages
are listed by their own `__all__`.

A class with several methods has a page of its own. Records, enumerations, functions and small
classes share the page of their group: a page for each of 280 names would be mostly navigation.
"""

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
PACKAGES = ("agent_core", "agcore", "kgent")
WIDTH = 96
SINGLE_QUOTED = re.compile(r"'([^'\"\\\\]*)'")
DECORATORS = {
    "abstractmethod",
    "asynccontextmanager",
    "classmethod",
    "contextmanager",
    "staticmethod",
}
ENGINES_OWN = ("agent_core.api.home.", "agent_core.runtime.")
SHOWN_SPECIALS = {"__aenter__", "__call__"}
METHODS_OF_A_PAGE = 3
NAVIGATION = re.compile(r"(?<=# reference: begin\n).*(?= {8}# reference: end)", re.DOTALL)

ENGINE: Mapping[str, tuple[str, str, Mapping[str, tuple[str, ...]]]] = {
    "runs": (
        "`agent_core`: runs",
        "Starting and following runs, their results and their history.",
        {
            "Runtime": ("AgentRuntime", "Session", "RunHandle", "RunResult", "RunError", "Worker"),
            "Messages and options": (
                *("UserMessage", "RunOptions", "RunFields", "Budget", "BudgetPool", "AnyModel"),
                *("AnyTool", "Config", "ModelConfig", "AgentDefinition"),
                *("Agent", "AnyAgent"),
            ),
            "Guards": (
                "on_message",
                "on_tool_call",
                "on_tool_result",
                "on_answer",
                "GuardContext",
                "GuardStop",
            ),
            "Extensions": ("Extension", "ExtensionContext", "AskModel", "RunTool"),
            "Events and states": (
                *("RuntimeEvent", "EventType", "RunMode", "RunStatus", "EndReason", "Usage"),
            ),
            "History": (
                *("Node", "Role", "ReplayResult", "InspectResult", "CancelResult"),
                *("CleanupResult", "DeleteSessionResult", "SwitchResult", "UndoState"),
                *("WorkspaceDiff", "FileChange"),
            ),
            "Lists": ("Pages", "Page", "SessionPage", "RunReport"),
            "Tasks": (
                *("Tasks", "TaskDocument", "TaskStep", "TaskEvent", "TaskStatus"),
                "TaskStepStatus",
            ),
            "Permission": (
                "PermissionRequest",
                "PermissionDecision",
                "Decision",
                "PermissionCallback",
            ),
        },
    ),
    "content": (
        "`agent_core`: content",
        "The parts of messages and results.",
        {
            "Blocks": (
                *("ContentBlock", "TextBlock", "JsonBlock", "ToolCallBlock", "ToolResultBlock"),
                *(
                    "ArtifactRefBlock",
                    "ReasoningBlock",
                    "ProviderToolBlock",
                    "CitationBlock",
                    "ImageBlock",
                ),
            ),
        },
    ),
    "tools": (
        "`agent_core`: tools",
        "Custom tools: a decorator, a registry, and the input and output of handlers.",
        {
            "Making tools": (
                *("tool", "ToolContext", "OfferContext", "ToolReturn", "ToolRetry", "ToolRegistry"),
                *("Tool", "Toolset", "McpStdio", "McpHttp"),
            ),
            "Calls and results": ("ToolDefinition", "ToolPermission", "ToolCall", "ToolResult"),
        },
    ),
    "providers": (
        "`agent_core`: providers",
        "Requests of the runtime to a model, and the events of an adapter.",
        {
            "Adapters": ("ProviderAdapter", "ProviderRegistry"),
            "Requests": ("ModelRequest", "ModelMessage", "SystemBlock"),
            "Answers": (
                *("ModelEvent", "ModelStarted", "ModelTextDelta", "ModelReasoningDelta"),
                *("ToolCallDelta", "ModelRetry", "ModelCompleted", "StopReason", "ModelFailed"),
            ),
        },
    ),
    "errors": (
        "`agent_core`: errors",
        "Every exception of the runtime is an `AgentCoreError` with a code and a message.",
        {
            "Base": ("AgentCoreError", "ErrorCode", "ErrorPayload"),
            "Kinds": (
                *("ArgumentError", "ConfigError", "PermissionDeniedError", "ProviderError"),
                *("SchemaError", "StorageError", "TaskError", "ToolError"),
            ),
        },
    ),
}
"""The pages of `agent_core`: file, title, what it is about, and its names by section."""

WHOLE = {
    "events": ("agent_core.types.event_details", "what is in an event", "../sdk.md"),
    "testing": ("agent_core.testing", "tests of a program", "../testing.md"),
    "frontends-ai_sdk": ("agent_core.frontends.ai_sdk", "the Vercel AI SDK", "../frontends.md"),
    "frontends-ag_ui": ("agent_core.frontends.ag_ui", "AG-UI", "../frontends.md"),
    "frontends-parts": ("agent_core.frontends.parts", "the parts of a run", "../frontends.md"),
    "serve": ("agent_core.serve", "the console in a program", "../console-api.md"),
    "agcore-agent": ("agcore.agent", "agents, sessions, contexts, plans", "../agcore.md"),
    "agcore-llm": ("agcore.llm", "model calls", "../agcore.md"),
    "agcore-memory": ("agcore.memory", "stores, conversations, knowledge", "../agcore.md"),
    "agcore-prompt": ("agcore.prompt", "templates and messages", "../agcore.md"),
    "agcore-tools": ("agcore.tools", "tools, permissions, MCP servers", "../agcore.md"),
    "kgent": ("kgent", "jobs described by a profile, recorded in a run folder", "../kgent.md"),
}
"""Pages that hold all of one module: file, module, its subject, and the page that explains it."""

PART = "Methods"
"""The end of the name of a class that is only a part of another, which inherits from it."""

STARS = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}

INTRODUCTION = """\
The public names of the three packages, generated from docstrings and signatures. Names that are not
listed are not public. `make reference` writes these pages, and the test suite fails if they differ
from the source; `python -m pydoc agent_core.ModelCompleted` shows a single name."""

Member = griffe.Object | griffe.Alias


@cache
def packages() -> griffe.ModulesCollection:
    """The three packages, as their source has them."""
    logging.getLogger("griffe").setLevel(logging.CRITICAL)
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"])
    for name in PACKAGES:
        loader.load(name)
    loader.resolve_aliases(implicit=True)
    return loader.modules_collection


def find(path: str) -> Member:
    """What a dotted name stands for."""
    return packages()[path]


def exported(module: str) -> list[str]:
    """The names in a module's `__all__`."""
    return sorted(str(name) for name in find(module).exports or ())


def target_of(member: Member) -> griffe.Object:
    """The definition behind a name."""
    return member.final_target if isinstance(member, griffe.Alias) else member


@cache
def public_names() -> dict[str, str]:
    """Where everything is defined that has a page, and the name it is public by."""
    names = [f"agent_core.{name}" for name in exported("agent_core")]
    for module, _, _ in WHOLE.values():
        names += [f"{module}.{name}" for name in exported(module)]
    return {target_of(find(name)).path: name.rpartition(".")[2] for name in names}


def public() -> frozenset[str]:
    """Where everything is defined that has a page."""
    return frozenset(public_names())


@cache
def renamed() -> dict[str, str]:
    """The names of definitions that are public by another name only, and that one."""
    own = {path.rpartition(".")[2]: name for path, name in public_names().items()}
    return {name: public for name, public in own.items() if name not in own.values()}


def own_definition(name: griffe.Expr | str) -> griffe.Object | None:
    """What a name in an annotation stands for, if it is of these packages."""
    path = name if isinstance(name, str) else name.canonical_path
    if path.partition(".")[0] not in PACKAGES:
        return None
    try:
        own = target_of(find(path))
    except (KeyError, griffe.AliasResolutionError):
        return None
    return own if own.parent is not None and own.parent.is_module else None


# --- text -----------------------------------------------------------------------------------------


def written(value: object) -> str:
    """An annotation or a default, by public names, on one line and in double quotes."""
    text = SINGLE_QUOTED.sub(r'"\1"', str(value).replace("\n", " "))
    return re.sub(r"\w+", lambda word: renamed().get(word[0], word[0]), text)


def default_of(attribute: griffe.Attribute) -> str:
    """What a field is where it is left out; "" if it must be given."""
    value = attribute.value
    if not (isinstance(value, griffe.ExprCall) and written(value.function).lower() == "field"):
        return "" if value is None else written(value)
    given = {
        argument.name if isinstance(argument, griffe.ExprKeyword) else "default": argument
        for argument in value.arguments
    }
    if factory := given.get("default_factory"):
        made = written(getattr(factory, "value", factory))
        if made.startswith("lambda:"):
            return made.removeprefix("lambda:").strip()
        made = made.partition("[")[0]
        return {"dict": "{}", "JsonObject": "{}", "list": "[]"}.get(made, f"{made}()")
    default = given.get("default")
    text = written(getattr(default, "value", default)) if default is not None else "..."
    return "" if text == "..." else text


def call(name: str, parameters: Iterable[griffe.Parameter], returns: str) -> str:
    """A signature, on one line if it fits and else with a line for each parameter."""
    parts: list[str] = []
    kinds = griffe.ParameterKind
    seen_star = False
    before: griffe.ParameterKind | None = None
    for parameter in parameters:
        if before is kinds.positional_only and parameter.kind is not kinds.positional_only:
            parts.append("/")
        if parameter.kind is kinds.keyword_only and not seen_star:
            parts.append("*")
            seen_star = True
        star = STARS.get(parameter.kind or kinds.positional_or_keyword, "")
        seen_star = seen_star or parameter.kind is kinds.var_positional
        text = f"{star}{parameter.name.lstrip('*')}"
        if parameter.annotation is not None:
            text += f": {written(parameter.annotation)}"
        if parameter.default is not None and not star:
            equals = " = " if parameter.annotation is not None else "="
            text += f"{equals}{written(parameter.default)}"
        parts.append(text)
        before = parameter.kind
    if before is kinds.positional_only:
        parts.append("/")
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def signature(function: griffe.Function, name: str, *, bound: bool) -> str:
    """How a function is called."""
    parameters = list(function.parameters)
    is_static = "staticmethod" in function.labels
    if bound and parameters and not is_static:
        parameters = parameters[1:]
    names = (written(decorator.value).rpartition(".")[2] for decorator in function.decorators)
    decorators = [f"@{decorator}\n" for decorator in names if decorator in DECORATORS]
    head = "async def" if "async" in function.labels else "def"
    returns = f" -> {written(function.returns)}" if function.returns is not None else ""
    return "".join(decorators) + call(f"{head} {name}", parameters, returns)


def code(*lines: str) -> str:
    """Lines as a block of Python."""
    return "\n".join(["```python", *lines, "```"])


def listed(name: str, annotation: object, text: str) -> str:
    """One item of a list of names."""
    kind = f": `{written(annotation)}`" if annotation is not None else ""
    body = text.strip().replace("\n", "\n  ")
    return f"- `{name}`{kind}{'. ' if kind else ': '}{body}" if body else f"- `{name}`{kind}"


def docstring(member: griffe.Object) -> Iterator[str]:
    """The text of a docstring, with its sections as lists."""
    if member.docstring is None:
        return
    kinds = griffe.DocstringSectionKind
    for section in member.docstring.parse("google", warnings=False):
        match section.kind:
            case kinds.text:
                yield str(section.value)
            case kinds.parameters:
                items = (listed(p.name, None, p.description) for p in section.value)
                yield "\n".join(["**Arguments**", "", *items])
            case kinds.attributes:
                items = (listed(a.name, None, a.description) for a in section.value)
                yield "\n".join(["**Attributes**", "", *items])
            case kinds.raises:
                items = (listed(written(r.annotation), None, r.description) for r in section.value)
                yield "\n".join(["**Raises**", "", *items])
            case kinds.returns:
                yield "**Returns** " + " ".join(r.description for r in section.value)
            case kinds.yields:
                yield "**Yields** " + " ".join(y.description for y in section.value)
            case _:
                yield f"**{section.title or section.kind.value}**\n\n{section.value}"


# --- one name -------------------------------------------------------------------------------------


def members_of(owner: griffe.Class) -> list[griffe.Object]:
    """What a class shows of itself, in the order of its source; then its parts without a page."""
    found = [
        target_of(member)
        for name, member in owner.members.items()
        if (not name.startswith("_") or name in SHOWN_SPECIALS) and name != "model_config"
    ]
    found.sort(key=lambda member: member.lineno or 0)
    for base in parts_of(owner):
        found += members_of(base)
    return found


def parts_of(owner: griffe.Class) -> list[griffe.Class]:
    """The bases of a class that only divide it into modules."""
    bases = (own_definition(b) for b in owner.bases if isinstance(b, griffe.Expr))
    return [b for b in bases if isinstance(b, griffe.Class) and b.name.endswith(PART)]


def is_enum(owner: griffe.Class) -> bool:
    """Whether a class is an enumeration."""
    return any(written(base).endswith("Enum") for base in owner.bases)


def is_record(owner: griffe.Class) -> bool:
    """Whether a class is made of its fields: a model, a dataclass, a typed dictionary."""
    if "dataclass" in owner.labels:
        return True
    bases = [written(base).partition("[")[0] for base in owner.bases]
    if {"BaseModel", "Struct", "TypedDict"} & set(bases):
        return True
    parents = (target_of(parent) for parent in owner.resolved_bases)
    return any(isinstance(parent, griffe.Class) and is_record(parent) for parent in parents)


def is_field(member: griffe.Object) -> bool:
    """Whether it is an attribute of an object, and no property."""
    return isinstance(member, griffe.Attribute) and "property" not in member.labels


def bases_of(owner: griffe.Class) -> list[str]:
    """What a class is made of, as far as it can be imported by name; a model is a `BaseModel`."""
    shown: list[str] = []
    for base in owner.bases:
        text = written(base)
        own = own_definition(base if isinstance(base, griffe.Expr) else text)
        if own is None or own.path in public():
            shown.append(text)
        elif isinstance(own, griffe.Class):
            shown += bases_of(own)
    return [base for base in shown if not base.startswith("Generic[")]


def constructor_of(owner: griffe.Class) -> griffe.Function | None:
    """How a program makes one; None if only the runtime does, of parts that a program has not."""
    init = owner.members.get("__init__")
    if not isinstance(init, griffe.Function):
        return None
    for expression in expressions(init):
        for name in names_in(expression):
            own = own_definition(name)
            if own is not None and own.path.startswith(ENGINES_OWN):
                return None
    return init


def head_of(owner: griffe.Class, name: str, fields: list[griffe.Attribute]) -> str:
    """A class as one would write it: its fields, its values, or how it is made."""
    shown = bases_of(owner)
    bases = f"({', '.join(shown)})" if shown else ""
    if is_enum(owner):
        return code(
            f"class {name}{bases}:", *(f"    {f.name} = {written(f.value)}" for f in fields)
        )
    if is_record(owner):
        lines = [f"class {name}{bases}:"]
        for field in fields:
            default = default_of(field)
            kind = f": {written(field.annotation)}" if field.annotation is not None else ""
            lines.append(f"    {field.name}{kind}{f' = {default}' if default else ''}")
        return code(*lines)
    if init := constructor_of(owner):
        return code(call(f"class {name}", list(init.parameters)[1:], ""))
    return code(f"class {name}{bases}")


def expressions(member: griffe.Object) -> Iterator[object]:
    """The annotations of a member, and of all that is shown of it."""
    if isinstance(member, griffe.Function):
        for function in member.overloads or [member]:
            yield function.returns
            yield from (parameter.annotation for parameter in function.parameters)
    elif isinstance(member, griffe.Class):
        init = constructor_of(member)
        for inside in [*members_of(member), *([init] if init else ())]:
            yield from expressions(inside)
    elif isinstance(member, griffe.Attribute):
        yield member.annotation
        yield member.value if member.annotation is None else None


def names_in(expression: object) -> Iterator[griffe.ExprName]:
    """The names that an annotation uses."""
    if isinstance(expression, griffe.Expr):
        for part in expression.iterate(flat=True):
            if isinstance(part, griffe.ExprName):
                yield part


def is_type_parameter(own: griffe.Object) -> bool:
    """Whether it stands for any type."""
    value = written(own.value) if isinstance(own, griffe.Attribute) else ""
    return value.startswith(("TypeVar(", "ParamSpec("))


def named_types(members: Iterable[griffe.Object]) -> list[griffe.Object]:
    """Types of these packages that annotations name and that have no page, by name."""
    found: dict[str, griffe.Object] = {}
    waiting = list(members)
    for member in waiting:
        for expression in expressions(member):
            for name in names_in(expression):
                own = own_definition(name)
                if own is None or own.name.startswith("_") or is_type_parameter(own):
                    continue
                if own.path not in public() | found.keys() and own is not member:
                    found[own.path] = own
                    if isinstance(own, griffe.Attribute):
                        waiting.append(own)  # an alias names others
    return sorted(found.values(), key=lambda own: (own.name, own.path))


def describe_types(members: Iterable[griffe.Object]) -> Iterator[str]:
    """The section on types that signatures name, each with the module it is imported from."""
    lines: list[str] = []
    for own in named_types(members):
        text = (own.docstring.value if own.docstring else "").split("\n\n")[0]
        value = own.value if isinstance(own, griffe.Attribute) else None
        meaning = f"`{written(value)}`. " if value is not None else ""
        line = (
            f"- `{own.name}` (`{own.path.rpartition('.')[0]}`): {meaning}{' '.join(text.split())}"
        )
        lines.append(line.rstrip(" :"))
    if lines:
        yield "## Types in these signatures"
        yield "\n".join(lines)


def describe(path: str, level: int) -> Iterator[str]:
    """The section of one name.

    Args:
        path: where it is imported from.
        level: of its heading.
    """
    member, name = target_of(find(path)), path.rpartition(".")[2]
    yield f"{'#' * level} `{name}`"
    if isinstance(member, griffe.Function):
        for function in member.overloads or [member]:
            yield code(signature(function, name, bound=False))
        yield from docstring(member)
    elif isinstance(member, griffe.Attribute):
        yield code(f"{name} = {written(member.value)}")
        yield from docstring(member)
    elif isinstance(member, griffe.Class):
        inside = members_of(member)
        fields = [m for m in inside if isinstance(m, griffe.Attribute) and is_field(m)]
        yield head_of(member, name, fields)
        yield from docstring(member)
        values = [
            listed(m.name, None if is_record(member) else m.annotation, m.docstring.value)
            for m in inside
            if isinstance(m, griffe.Attribute) and m.docstring is not None
        ]
        if values:
            yield "\n".join(["**Properties**", "", *values])
        for method in (m for m in inside if isinstance(m, griffe.Function)):
            yield f"{'#' * (level + 1)} `{name}.{method.name}`"
            owner = method.parent if isinstance(method.parent, griffe.Class) else member
            overloads = owner.overloads.get(method.name)
            for function in overloads or [method]:
                yield code(signature(function, method.name, bound=True))
            yield from docstring(method)


# --- pages ----------------------------------------------------------------------------------------


def has_own_page(path: str) -> bool:
    """Return whether a name is a class with enough methods for a page of its own."""
    member = target_of(find(path))
    if not isinstance(member, griffe.Class):
        return False
    methods = [each for each in members_of(member) if isinstance(each, griffe.Function)]
    return len(methods) >= METHODS_OF_A_PAGE


def own_page(module: str, name: str) -> str:
    """Return the file, without its ending, of a class that has a page of its own."""
    return f"{module.replace('.', '-')}-{name}"


def class_page(module: str, name: str, group: str) -> str:
    """Return the page of one class."""
    parts = [*describe(f"{module}.{name}", 1)]
    parts.insert(1, f"Imported from `{module}`. Overview: [{group}]({group}.md).")
    parts += describe_types([target_of(find(f"{module}.{name}"))])
    return joined(parts)


def joined(parts: Iterable[str]) -> str:
    """Return parts of a page as its text."""
    return "\n\n".join(part.strip() for part in parts if part.strip())


def class_links(module: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the list of classes that have pages of their own, each with its first sentence."""
    lines: list[str] = []
    for name in names:
        member = target_of(find(f"{module}.{name}"))
        text = " ".join(
            (member.docstring.value if member.docstring else "").split("\n\n")[0].split()
        )
        lines.append(f"- [`{name}`]({own_page(module, name)}.md): {text}".rstrip(": "))
    if lines:
        yield "\n".join(lines)


def pages() -> dict[str, str]:
    """Return every page by the name of its file.

    Raises:
        SystemExit: an exported name of `agent_core` is on no page.
    """
    written_pages: dict[str, str] = {}
    index: list[tuple[str, str, str]] = []
    names = exported("agent_core")
    for file, (title, about, sections) in ENGINE.items():
        parts = [f"# {title}", f"{about} Every name is imported from `agent_core`."]
        shared: list[str] = []
        for section, wanted in sections.items():
            present = [name for name in wanted if name in names]
            parts += [f"## {section}"] if present else []
            own = [name for name in present if has_own_page(f"agent_core.{name}")]
            parts += class_links("agent_core", own)
            for name in present:
                page = own_page("agent_core", name) if name in own else file
                index.append((name, "agent_core", page))
                if name in own:
                    written_pages[f"{page}.md"] = class_page("agent_core", name, file)
                else:
                    shared.append(name)
                    parts += describe(f"agent_core.{name}", 3)
        parts += describe_types(target_of(find(f"agent_core.{name}")) for name in shared)
        written_pages[f"{file}.md"] = joined(parts)
    if missing := sorted(set(names) - {name for name, _, _ in index}):
        sys.exit(f"{Path(__file__).name}: put these on a page in ENGINE: {', '.join(missing)}")
    for file, (module, about, page) in WHOLE.items():
        parts = [
            f"# `{module}`: {about}",
            f"Every name is imported from `{module}`. Guide: [{module}]({page}).",
        ]
        own = [name for name in exported(module) if has_own_page(f"{module}.{name}")]
        parts += class_links(module, own)
        shared = [name for name in exported(module) if name not in own]
        for name in own:
            index.append((name, module, own_page(module, name)))
            written_pages[f"{own_page(module, name)}.md"] = class_page(module, name, file)
        for name in shared:
            parts += describe(f"{module}.{name}", 2)
            index.append((name, module, file))
        parts += describe_types(target_of(find(f"{module}.{name}")) for name in shared)
        written_pages[f"{file}.md"] = joined(parts)
    homes = {name: file for name, _, file in index}
    index += [(name, "agcore", homes[name]) for name in exported("agcore") if name in homes]
    written_pages["README.md"] = contents(index)
    return {file: f"{text}\n" for file, text in written_pages.items()}


def contents(index: Iterable[tuple[str, str, str]]) -> str:
    """The page that leads to the others, with every name."""
    lines = [
        "# Reference",
        INTRODUCTION,
    ]
    by_module: dict[str, list[str]] = {}
    for name, module, file in sorted(index, key=lambda entry: entry[0].lower()):
        link = f"[`{name}`]({file}.md#{name.lower()})"
        by_module.setdefault(module, []).append(link)
    for module in sorted(by_module):
        lines += [f"## `{module}`", " · ".join(by_module[module])]
    return "\n\n".join(lines)


def navigation(found: Iterable[str]) -> str:
    """Return the entries of `zensical.toml` for the pages: packages, their groups and classes."""
    files = sorted(found, key=str.lower)

    def entry(label: str, file: str, depth: int) -> str:
        return f'{" " * depth}{{ "{label}" = "docs/reference/{file}.md" }},'

    def group(label: str, file: str, classes: Iterable[str], depth: int) -> Iterator[str]:
        inside = [each for each in classes if f"{each}.md" in files]
        if not inside:
            yield entry(label, file, depth)
            return
        yield f'{" " * depth}{{ "{label}" = ['
        yield entry("Overview", file, depth + 4)
        for each in inside:
            yield entry(each.rpartition("-")[2], each, depth + 4)
        yield f"{' ' * depth}] }},"

    def own(module: str, names: Iterable[str]) -> list[str]:
        return [own_page(module, name) for name in sorted(names)]

    lines = [entry("All names", "README", 8), '        { "agent_core" = [']
    for file, (_, _, sections) in ENGINE.items():
        names = [name for wanted in sections.values() for name in wanted]
        lines += group(file.capitalize(), file, own("agent_core", names), 12)
    whole = [(file, module) for file, (module, _, _) in WHOLE.items()]
    for file, module in whole:
        if module.startswith("agent_core."):
            label = file.capitalize().replace("-", ".")
            lines += group(label, file, own(module, exported(module)), 12)
    lines += ["        ] },", '        { "agcore" = [']
    for file, module in whole:
        if module.startswith("agcore."):
            lines += group(module.partition(".")[2], file, own(module, exported(module)), 12)
    lines += ["        ] },", *group("kgent", "kgent", own("kgent", exported("kgent")), 8)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the pages anew, and their place in the navigation of the site.

    Raises:
        OSError: a page cannot be written.
    """
    found = pages()
    for file in FOLDER.glob("*.md"):
        if file.name not in found:
            file.unlink()
    for file, text in found.items():
        (FOLDER / file).write_text(text, encoding="utf-8")
    site = ROOT / "zensical.toml"
    text = NAVIGATION.sub(lambda _: navigation(found), site.read_text(encoding="utf-8"))
    site.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
