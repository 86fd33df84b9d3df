"""The commands for datasets: what they print, their exit codes, and one clear line for every user error."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import gids
from gids.cli import COMMANDS, main
from gids.cli.bench import BENCHMARKS
from gids.report import Epoch, Run


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def call(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return call


@pytest.fixture
def dataset(tmp_path, run):
    path = tmp_path / "graph"
    code, out, _ = run("generate", "communities", path, "--nodes", "2k", "--dim", 8, "--quiet")
    assert code == 0
    assert "2,000" in out
    return gids.open(path)


@pytest.mark.parametrize("command", ["generate", "convert", "info", "verify"])
def test_help(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert COMMANDS[command].split()[0] in out
    assert "usage: gids" in out


def test_generate_kinds(tmp_path, run):
    code, _, err = run(
        "generate", "rmat", tmp_path / "r", "--nodes", 1000, "--dim", 4, "--dtype", "float16", "--abc", 0.5, 0.2, 0.2
    )
    assert code == 0
    assert "_N/feat" in err  # the progress bars
    assert gids.open(tmp_path / "r").feature_table().dtype == "float16"
    assert gids.open(tmp_path / "r").attributes["a"] == 0.5
    drives = [tmp_path / "d0", tmp_path / "d1"]
    words = [word for drive in drives for word in ("--stripe-dir", drive)]
    assert run("generate", "communities", tmp_path / "s", "--nodes", "1.5k", "--dim", 4, "--quiet", *words)[0] == 0
    assert len(gids.open(tmp_path / "s").feature_table().stripes) == 2
    assert gids.open(tmp_path / "s").num_nodes() == 1500


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["generate", "communities", "{tmp}/g", "--homophily", "2"], 1, "homophily must be in [0, 1] (got 2.0)"),
        (["generate", "communities", "{tmp}/g", "--ordered"], 1, "is not an option of communities"),
        (["generate", "rmat", "{tmp}/g", "--skew", "2"], 1, "--skew is not an option of rmat"),
        (["generate", "rmat", "{tmp}/g", "--blocks", "2"], 1, "--blocks is not an option of rmat"),
        (["generate", "communities", "{tmp}/g", "--inside", "0.9"], 1, "need --blocks"),
        (["generate", "communities", "{tmp}/g", "--nodes", "many"], 2, "must be a count like 4000000"),
        (["generate", "communities"], 2, "the following arguments are required"),
        (["generate", "communities", "{tmp}/no/such/place"], 1, "must be a directory, to hold the new dataset"),
        (["info", "{tmp}/none"], 1, "must be a directory with a manifest.json"),
        (["verify", "{tmp}"], 1, "has no manifest.json"),
        (["convert", "{tmp}/none", "{tmp}/out"], 1, "must be a file or directory (there is none)"),
        (["convert", "{tmp}", "{tmp}/out"], 1, "looks like none of them"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "igb"], 1, "must be a file"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "ogb"], 1, "must be a file"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "mag240m"], 1, "No such file or directory"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "ginex"], 1, "must hold one conf.json"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "graphbolt"], 1, "metadata.yaml must be a file"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "arrays"], 1, "edges of"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "ogb", "--trust"], 1, "--trust is an option of pyg"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "ogb", "--nodes", "5"], 1, "--nodes is an option of arrays"),
        (["convert", "{tmp}", "{tmp}/out", "--from", "avro"], 2, "invalid choice"),
    ],
)
def test_user_errors(tmp_path, run, words, code, message):
    got, _, err = run(*[word.format(tmp=tmp_path) for word in words])
    assert got == code
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_info(dataset, run):
    code, out, _ = run("info", dataset.path)
    assert code == 0
    for text in ("feat", "2,000", "labels", "train", "_N → _E → _N", dataset.id):
        assert text in out
    code, out, _ = run("info", dataset.path, "--json")
    facts = json.loads(out)
    assert facts["id"] == dataset.id
    assert facts["nodes"]["_N"]["count"] == 2000
    assert facts["nodes"]["_N"]["features"]["feat"]["dim"] == 8
    assert facts["edges"][0]["count"] == dataset.num_edges()


def test_verify(dataset, run):
    code, out, _ = run("verify", dataset.path, "--quiet")
    assert code == 0
    assert "no problem in 7 tables" in out
    path = dataset.feature_table().stripes[0].path
    data = bytearray(path.read_bytes())
    data[1234 * 32 + 5] ^= 4
    path.write_bytes(data)
    code, out, _ = run("verify", dataset.path, "--quiet")
    assert code == 1
    assert "_N/feat is damaged in row 1234 " in out
    code, out, _ = run("verify", dataset.path, "--json")
    assert code == 1
    facts = json.loads(out)
    assert facts["ok"] is False
    assert [(p["table"], p["first_row"], p["last_row"]) for p in facts["problems"]] == [("_N/feat", 1234, 1234)]


def test_overwrite(dataset, run):
    words = ["generate", "communities", dataset.path, "--nodes", "3k", "--dim", 8, "--quiet"]
    code, _, err = run(*words)
    assert code == 1
    assert "exists; choose another path" in err
    assert run(*words, "--overwrite")[0] == 0
    assert gids.open(dataset.path).num_nodes() == 3000


def test_convert_named_files(tmp_path, run):
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a/my-features.npy", np.ones((5, 3), np.float32))
    np.save(tmp_path / "a/seeds.npy", np.array([1, 2]))
    (tmp_path / "a/graph.txt").write_text("0 1\n1 2\n")
    words = [
        "--edges",
        tmp_path / "a/graph.txt",
        "--features",
        tmp_path / "a/my-features.npy",
        "--train",
        tmp_path / "a/seeds.npy",
    ]
    code, _, _ = run(
        "convert",
        tmp_path / "a",
        tmp_path / "out",
        "--from",
        "arrays",
        "--add-reverse",
        "--in-place",
        "--quiet",
        *words,
    )
    assert code == 0
    dataset = gids.open(tmp_path / "out")
    assert dataset.num_edges() == 4
    assert dataset.split("train").tolist() == [1, 2]
    assert dataset.feature_table().stripes[0].path == tmp_path / "a/my-features.npy"


@pytest.mark.parametrize("command", [["info", "{tmp}"], ["bench", "epoch", "--quick"], ["demo"]], ids=lambda c: c[0])
def test_an_interrupt_while_torch_is_imported_is_one_line(tmp_path, command):
    """A torch that is interrupted while it is imported, and makes another error of it, as C code does."""
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    raise ImportError('torch cannot be imported') from None\n"
    )
    words = [sys.executable, "-m", "gids", *(word.format(tmp=tmp_path) for word in command)]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    result = subprocess.run(
        words,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    assert (result.returncode, result.stderr) == (130, "gids: interrupted\n")


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("dgl", ["convert", "{tmp}/graph.bin", "{tmp}/out", "--from", "dgl"]),
        ("torch_geometric", ["convert", "{tmp}/graph.pt", "{tmp}/out", "--from", "pyg", "--trust"]),
        ("matplotlib", ["report", "{tmp}/run.json"]),
    ],
    ids=lambda c: c if isinstance(c, str) else "",
)
@pytest.mark.parametrize(
    "becomes", ["raise ImportError('cannot be imported') from None", "pass"], ids=["error", "none"]
)
def test_an_interrupt_while_a_command_imports_is_one_line(tmp_path, run, monkeypatch, package, words, becomes):
    """Packages that are imported where they are first needed, and make another error of Ctrl-C, or none."""
    (tmp_path / f"{package}.py").write_text(
        "import os, signal, time\n"
        f"try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    {becomes}\n"
    )
    (tmp_path / "graph.bin").write_bytes(b"")
    torch.save({"edge_index": torch.tensor([[0], [1]]), "x": torch.ones(2, 1)}, tmp_path / "graph.pt")
    Run("small", "A run", epochs=[Epoch("gids", 0, 1.0, 1, loss=1.0)]).save(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have it ignored
    try:
        code, _, err = run(*(word.format(tmp=tmp_path) for word in words))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
        sys.modules.pop(package, None)
    assert (code, err.splitlines()[-1]) == (130, f"gids {words[0]}: interrupted")


def test_help_is_quick_and_a_typo_lists_the_names(tmp_path, run):
    """No torch where nothing needs it: one that cannot be imported is not missed."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    words = [sys.executable, "-m", "gids", "--help"]
    said = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert all(f"\n    {name}" in said for name in COMMANDS)
    code, _, err = run("cnovert")
    assert code == 2
    assert all(f"'{name}'" in err for name in COMMANDS)
    code, _, err = run("bench", "epohc")
    assert code == 2
    assert all(f"'{name}'" in err for name in BENCHMARKS)
    code, _, err = run("info", "somewhere", "--jsno")
    assert code == 2
    assert "[--json]" in err
    assert "unrecognized arguments: --jsno" in err


@pytest.mark.parametrize("option", ["", "--json"])
def test_whoever_reads_one_line_is_no_error(dataset, option):
    """``gids info DATASET | head -1``: the reader goes while there is more to print, by rich or by ``print``."""
    command = f"{sys.executable} -m gids info {dataset.path} {option} | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    first = "{\n" if option else f"{dataset.path}  "
    assert (result.returncode, result.stdout[: len(first)], result.stderr) == (0, first, "")
    assert result.stdout.count("\n") == 1
