# SPDX-License-Identifier: Apache-2.0
"""A generator for `octavo evolve run --generator command --command "python3 evolve_generator.py"`.

Reads one JSON document on standard input and writes one on standard output. This one moves one field of
the best kernel to a neighbouring value; a language model would read document["prompt"] instead, or the
parts it is made of, and could also answer with "patch", a unified diff of document["sources"].
"""

import json
import random
import re
import sys

document = json.load(sys.stdin)
current = document["task"]["current"]  # {"id", "config", "patch"}
effects = document.get("insights", [])  # measured effects of single changes; not with "free"
random.seed(document["generation"])

candidates = []
while len(candidates) < document["count"]:
    lever = random.choice(document["levers"])  # {"tag", "values"}
    found = re.search(rf"\.{lever['tag']}=(?:\w+::)?(\w+)", current["config"])
    if not found or found[1] not in lever["values"]:
        continue
    at = lever["values"].index(found[1]) + random.choice((-1, 1))
    if 0 <= at < len(lever["values"]):
        change = f"{lever['tag']}={lever['values'][at]}"
        candidates.append({"parent": current["id"], "config": change, "tag": lever["tag"],
                           "rationale": f"a neighbour of {found[1]}; {len(effects)} effects are known"})

json.dump({"candidates": candidates}, sys.stdout)
