"""The exit codes of the process."""

COMPLETED = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 130  # 128 + SIGINT; other signals likewise
OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as if the signal had ended the process
