"""Exits with 1 if the cleaned table lacks an order of the raw one, or has one too many."""

import csv
import sys
from pathlib import Path

raw, cleaned = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:3])
given = {row["Order"] for row in csv.DictReader(raw.splitlines(), delimiter=";")}
written = [row["order"] for row in csv.DictReader(cleaned.splitlines())]
if sorted(given) != sorted(written):
    sys.exit(f"orders {sorted(given)} were given, {sorted(written)} are written")
print(f"{len(written)} orders, each once")
