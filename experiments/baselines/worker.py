"""A contender in a process of its own: obeys one JSON line per round, answers with one."""

from __future__ import annotations

import json
import sys
from typing import Any

from experiments.baselines import CONTENDERS, Job
from experiments.baselines.rounds import Rounds
from gids.errors import GidsError
from gids.report.growth import peak_resident_bytes


def serve(order: dict[str, Any], rounds: Rounds) -> dict[str, Any]:
    if order["what"] == "facts":
        return rounds.contender.facts()
    if order["what"] == "warm up":
        return rounds.warm_up(order["number"], order["batches"], order["rows"])
    return rounds.timed(order["number"], order["batches"], order["rows"], order["what"] == "train")


def main() -> None:
    spec = json.loads(sys.argv[1])
    try:
        contender = CONTENDERS[spec["contender"]](Job(**spec["job"]))
        rounds = Rounds(contender)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            answer = serve(json.loads(line), rounds)
            answer["peak_rss_bytes"] = peak_resident_bytes()
            print(json.dumps(answer), flush=True)
        contender.close()
    except GidsError as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
