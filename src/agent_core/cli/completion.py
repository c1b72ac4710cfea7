"""`soong-agent completion`: scripts for shells, made of the parser of the commands."""

import argparse
import shlex
import sys
from collections.abc import Iterator

from agent_core.cli.exit_codes import COMPLETED
from agent_core.cli.options import Options, Parser

_FILES = ("<file>", "<dir>", "<dir-or-file>")
_BASH = """\
_soong_agent() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at= depth=0 word skip= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == -- ]]; then COMPREPLY=(); return; fi
    if [[ $word == = ]]; then skip=1; continue; fi
    if [[ -n $skip ]]; then skip=; continue; fi
    case $word in
      %(valued)s) skip=1 ;;
      -*) ;;
      *) if ((depth < 2)); then case "${at:+$at }$word" in
           %(places)s) at=${at:+$at }$word ;;
         esac; ((depth++)); fi ;;
    esac
  done
  local offered=
  if [[ $cur == = ]]; then cur=; prev="= "; fi
  case $prev in
    =) prev=${COMP_WORDS[COMP_CWORD-2]} ;;
    "= ") prev=${COMP_WORDS[COMP_CWORD-1]} ;;
  esac
  case $prev in
    %(files)s) COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames; return ;;
  esac
  case "$at|$prev" in
%(choices)s
  esac
  if [[ -z $offered && -n $skip ]]; then COMPREPLY=(); return; fi
  if [[ -z $offered ]]; then
    case "$at|${cur:0:1}" in
%(words)s
    esac
  fi
  COMPREPLY=($(compgen -W "$offered" -- "$cur"))
}
complete -o default -F _soong_agent soong-agent
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def print_completion(options: Options) -> int:
    """Print the script for one shell, and return the exit code."""
    parser = options.build_parser()
    match options.action:
        case "fish":
            script = "\n".join(_fish(parser)) + "\n"
        case "zsh":
            script = _ZSH + _bash(parser).replace("compopt -o filenames; ", "")
        case _:
            script = _bash(parser)
    sys.stdout.write(script)
    return COMPLETED


def _places(parser: Parser, place: str = "") -> Iterator[tuple[str, Parser]]:
    """Each command and action with the words that lead to it."""
    yield place, parser
    for name, command in parser.commands.items():
        yield from _places(command, f"{place} {name}".strip())


def _values(option: argparse.Action) -> str:
    """Return the words that an option or an argument takes, where they are known."""
    if option.metavar == "key":
        from agent_core.cli.config_file import setting_keys  # noqa: PLC0415 - needed here only

        return " ".join(setting_keys())
    return " ".join(map(str, option.choices or ()))


def _values_after_keys(command: Parser) -> dict[str, str]:
    """Return the words that may follow each key as its value, if the command takes one."""
    arguments = [option for option in command.options if not option.option_strings]
    if [each.metavar or each.dest for each in arguments] != ["key", "value"]:
        return {}
    from agent_core.cli.config_file import setting_values  # noqa: PLC0415 - needed here only

    return {key: " ".join(words) for key, words in setting_values().items()}


def _is_valued(option: argparse.Action) -> bool:
    return bool(option.option_strings) and option.nargs != 0


def _bash(parser: Parser) -> str:
    valued, files = dict[str, None](), dict[str, None]()
    choices, words, places = list[str](), list[str](), list[str]()
    for place, command in _places(parser):
        names = ["-h", "--help"]
        arguments: list[str] = list(command.commands)
        for option in command.options:
            names += option.option_strings
            values = _values(option)
            if not option.option_strings:
                arguments += values.split()
                continue
            if _is_valued(option):
                valued |= dict.fromkeys(option.option_strings)
            if option.metavar in _FILES:
                files |= dict.fromkeys(option.option_strings)
            for name in option.option_strings if values else ():
                choices.append(
                    f"    {shlex.quote(f'{place}|{name}')}) offered={shlex.quote(values)} ;;"
                )
        free: list[str] = []
        for key, values in _values_after_keys(command).items():
            if values:
                at = shlex.quote(f"{place}|{key}")
                choices.append(f"    {at}) offered={shlex.quote(values)} ;;")
            else:
                free.append(shlex.quote(f"{place}|{key}"))
        if free:
            choices.append(f"    {'|'.join(free)}) COMPREPLY=(); return ;;")
        if place:
            places.append(shlex.quote(place))
        key = shlex.quote(f"{place}|-")
        words.append(f"      {key}) offered={shlex.quote(' '.join(dict.fromkeys(names)))} ;;")
        if arguments:
            words.append(
                f"      {shlex.quote(f'{place}|')}*) offered={shlex.quote(' '.join(arguments))} ;;"
            )
    return _BASH % {
        "valued": "|".join(valued),
        "files": "|".join(files),
        "places": "|".join(places),
        "choices": "\n".join(choices),
        "words": "\n".join(words),
    }


def _fish(parser: Parser) -> Iterator[str]:
    yield "complete -c soong-agent -f"
    for place, command in _places(parser):
        below = " ".join(command.commands)
        first, _, second = place.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}" if first else "__fish_use_subcommand"
        if second:
            seen += f"; and __fish_seen_subcommand_from {second}"
        condition = f"complete -c soong-agent -n {_quoted(seen)}"
        for name, action in command.commands.items():
            rest = f"{seen}; and not __fish_seen_subcommand_from {below}" if first else seen
            yield (
                f"complete -c soong-agent -n {_quoted(rest)} -a {_quoted(name)}"
                f" -d {_quoted(action.what)}"
            )
        followed = _values_after_keys(command)
        for key, values in followed.items():
            after = _quoted(f"{seen}; and __fish_seen_subcommand_from {key}")
            if values:
                yield f"complete -c soong-agent -n {after} -a {_quoted(values)}"
        for option in command.options:
            values = _values(option)
            if not option.option_strings:
                if values and followed:
                    first_word = f"{seen}; and not __fish_seen_subcommand_from {values}"
                    yield f"complete -c soong-agent -n {_quoted(first_word)} -a {_quoted(values)}"
                elif values:
                    yield f"{condition} -a {_quoted(values)}"
                continue
            longs = [f"-l {name[2:]}" for name in option.option_strings if name[:2] == "--"]
            shorts = [f"-s {name[1:]}" for name in option.option_strings if name[:2] != "--"]
            takes = ["-r" if option.metavar in _FILES else "-x"] if _is_valued(option) else []
            takes += ["-F"] if option.metavar in _FILES else []
            takes += [f"-a {_quoted(values)}"] if values else []
            yield " ".join([condition, *longs, *shorts, *takes, "-d", _quoted(option.help or "")])


def _quoted(text: str) -> str:
    """A word of fish, which knows no other escapes between single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
