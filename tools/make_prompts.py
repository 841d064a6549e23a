"""Write the prompt sets of the demo draft: seeded, training and held-out halves disjoint."""

from __future__ import annotations

import itertools
import json
import sys
from argparse import ArgumentParser
from pathlib import Path

from sgl_dspark.demo.prompts import SPLITS, prompts


def main() -> int:
    """Write ``count`` prompts of one split as JSONL."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", encoding="utf-8") as sink:
        for record in itertools.islice(prompts(args.split, args.seed), args.count):
            sink.write(json.dumps(record, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
