"""The records that the repository keeps: pictures, JSON, and the tables in README.md that come from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from experiments import harness, tables

README = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).with_name("results")


def readme_parts() -> dict[str, str]:
    """What README.md must have between its markers, from the kept records."""
    contenders = json.loads((RESULTS / "contenders.json").read_text())
    origin, results = contenders["provenance"], contenders["results"]
    head = (
        f"{origin['cpu']}, {origin['cores']} cores, disk {origin['disk']['device']} ({origin['disk']['filesystem']}), "
        f"commit {origin['commit']}, {origin['time_utc']}. Table {results['table_bytes'] / 2**20:,.0f} MiB of rows of "
        f"{results['row_bytes']} bytes, memory limit {results['limit_bytes'] / 2**20:,.0f} MiB a process, batch "
        f"{contenders['config']['batch_size']}, fan-out {contenders['config']['fanouts']}; median and median absolute "
        f"deviation of {contenders['config']['rounds']} rounds. No training step."
    )
    pictures = "\n\n".join(
        f"**{r['title']}.** *The paper:* {r['claim']} *Here:* {harness.load(name).here(r['results'])} "
        f"*What differs:* {r['differs']}\n\n![{r['title']}](results/{name}.svg)"
        for name in harness.names()
        if (RESULTS / f"{name}.json").exists()
        for r in [json.loads((RESULTS / f"{name}.json").read_text())]
    )
    return {"contenders": f"{head}\n\n{tables.markdown(contenders)}", "figures": pictures}


def between(text: str, name: str) -> tuple[int, int]:
    """Where the part of a name is in a text."""
    begin, end = f"<!-- {name}:begin -->\n", f"\n<!-- {name}:end -->"
    return text.index(begin) + len(begin), text.index(end)


def keep(out: Path) -> None:
    """Copy records of the full scale and their pictures into the repository, and bring README.md up to date."""
    RESULTS.mkdir(exist_ok=True)
    for name in harness.names():
        path = out / f"{name}.json"
        if not path.exists():
            continue
        record = json.loads(path.read_text())
        commit = record["provenance"]["commit"]
        if record["scale"] != "full" or "dirty" in commit:
            raise SystemExit(
                f"kept records must be of the full scale and a clean commit (got {name}: {record['scale']}, {commit})"
            )
        if out.resolve() != RESULTS.resolve():
            for suffix in (".json", ".svg"):
                shutil.copy(path.with_suffix(suffix), RESULTS)
    text = README.read_text()
    for name, part in readme_parts().items():
        begin, end = between(text, name)
        text = text[:begin] + part + text[end:]
    README.write_text(text)
