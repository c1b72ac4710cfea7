from agent_core.process.environment import command_environment, is_unattended


def test_a_command_gets_locale_time_zone_terminal_and_user_beside_the_allowed_names() -> None:
    mine = {
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "Europe/Berlin",
        "TERM": "xterm",
        "USER": "ada",
        "LOGNAME": "ada",
    }
    environ = mine | {"PATH": "/bin", "HOME": "/home/ada", "API_KEY": "secret", "LANGUAGE": "de"}

    env = command_environment(["PATH"], environ)

    editors = dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"), "true")
    editors |= {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
    assert env == mine | editors | {"PATH": "/bin"}
    assert all(is_unattended(name, env[name]) for name in editors)


def test_an_editor_is_inherited_only_where_it_is_allowed() -> None:
    environ = {"EDITOR": "vim", "PAGER": "less"}

    env = command_environment(["EDITOR"], environ)

    assert (env["EDITOR"], env["PAGER"]) == ("vim", "cat")
    assert not is_unattended("EDITOR", env["EDITOR"])
