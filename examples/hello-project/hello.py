"""Greets whoever is named on the command line."""

import sys


def greeting(name: str) -> str:
    return f"Helo, {name}!"


if __name__ == "__main__":
    print(greeting(" ".join(sys.argv[1:]) or "world"))
