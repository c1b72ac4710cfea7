"""A PreToolUse hook: an agent does not push, whatever else it may run."""

import json
import sys

call = json.load(sys.stdin)
if call["arguments"]["argv"][:2] == ["git", "push"]:
    print(json.dumps({"decision": "deny", "reason": "a person pushes, after a look at the diff"}))
