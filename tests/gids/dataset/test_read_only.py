"""Directories that cannot be written, and disks that are full: it works elsewhere, or says what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gids
from gids.cli import main
from gids.dataset.scratch import scratch_directory
from gids.errors import ConfigError
from gids.generate import communities
from gids.storage.probe import probe_file
from tests.gids.kg.graphs import make as make_triples
from tests.gids.kg.graphs import random_triples
from tests.resources import DEADLINE_S


def unshare(script, *arguments, timeout=DEADLINE_S):
    """Run a shell script as root of a mount namespace of its own; skip where that is not allowed."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-e", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode
    ):
        pytest.skip("mount namespaces are not allowed here (unshare --map-root-user --mount)")
    environment = os.environ | {"GIDS": f"{sys.executable} -m gids", "PYTHONPATH": str(Path.cwd())}
    environment.pop("GIDS_SCRATCH", None)
    return subprocess.run(
        [*command, script, "sh", *map(str, arguments)],
        env=environment, capture_output=True, text=True, check=False, timeout=timeout,
    )  # fmt: skip


@pytest.fixture
def dataset(tmp_path):
    return communities(tmp_path / "d", num_nodes=300, degree=5, dim=8, train=0.3)


def only_in(monkeypatch, *places):
    """Let temporary files be made in these directories only, as permissions do for who is not root."""
    import tempfile

    make = tempfile.TemporaryFile

    def refuse(*arguments, **options):
        if not any(Path(options["dir"]).is_relative_to(place) for place in places):
            raise PermissionError(13, "Permission denied")
        return make(*arguments, **options)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


def test_where_scratch_files_go(tmp_path, monkeypatch):
    monkeypatch.delenv("GIDS_SCRATCH", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    assert scratch_directory(data, "id") == data / "scratch"
    only_in(monkeypatch, tmp_path / "cache")
    assert scratch_directory(data, "id") == tmp_path / "cache" / "gids" / "scratch" / "id"
    only_in(monkeypatch)
    last = scratch_directory(data, "id")
    assert last.is_dir()
    assert last.parent.stat().st_mode & 0o077 == 0
    assert last == scratch_directory(data, "id")
    monkeypatch.setenv("GIDS_SCRATCH", str(tmp_path / "chosen"))
    with pytest.raises(ConfigError, match=f"GIDS_SCRATCH must be a directory that can be written.*{tmp_path}/chosen"):
        scratch_directory(data, "id")
    monkeypatch.undo()
    monkeypatch.setenv("GIDS_SCRATCH", str(tmp_path / "chosen"))
    assert scratch_directory(data, "id") == tmp_path / "chosen" / "id"


READ_ONLY = """
for path in "$1" "$2"; do
    mount --bind "$path" "$path"
    mount -o remount,bind,ro "$path"
    ! touch "$path/x" 2>/dev/null
done
cd "$3"
export XDG_CACHE_HOME="$3"
exec "$4" -c "$5" "$1" "$2"
"""
EVERY_COMMAND = """
import sys
from gids.cli import main
graph, triples = sys.argv[1:]
model = ["--model", "gids.models:GraphSAGE", "--args", '{"in_dim": 8, "hidden_dim": 4, "out_dim": 2}']
for command in (
    ["info", graph],
    ["verify", graph],
    ["budget", graph, "--budget", "64MiB", "--batch-size", "16", "--fanouts", "3", "3"],
    ["partition", graph, "--parts", "4"],
    ["reorder", graph, "relabelled", "--by", "partition"],
    ["shard", graph, "shard", "--node", "0", "--nodes", "2"],
    ["pack", graph, "packed", "--fanouts", "3", "--batch-size", "16"],
    ["infer", graph, "answers", *model],
    ["slice", triples, "--hops", "1"],
):
    assert main(command) == 0, command
assert main(["infer", graph, *model]) == 1, "results would become tables of the dataset"
assert main(["probe", graph]) == 1, "there is room for no file to measure with, and none that is large enough"
"""


def test_every_command_works_on_a_read_only_dataset(dataset, tmp_path):
    (tmp_path / "known").mkdir()
    triples = make_triples(tmp_path / "known", random_triples(50, 3, 200, 4), num_entities=50)
    (tmp_path / "out").mkdir()
    result = unshare(READ_ONLY, dataset.path, triples.path, tmp_path / "out", sys.executable, EVERY_COMMAND)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert "must be a directory that can be written, to add tables to it" in result.stderr
    assert "or a smaller --scratch" in result.stderr


def test_a_loader_on_a_read_only_dataset_in_a_read_only_home(dataset, tmp_path):
    script = """
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
export HOME=/proc XDG_CACHE_HOME=/proc/none
cd /
exec "$2" -c "
import sys, gids
with gids.Loader(sys.argv[1], 'train', batch_size=16, fanouts=[3, 3], budget='64MiB') as loader:
    print(sum(len(batch.seeds) for batch in loader))
" "$1"
"""
    result = unshare(script, dataset.path, sys.executable)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) == len(dataset.split("train"))


@pytest.mark.parametrize("host_buffer", ["16KiB", "0"])
def test_a_read_only_shared_memory_is_an_error_with_its_remedy_and_the_remedy_works(dataset, host_buffer):
    script = """
mount -t tmpfs -o ro none /dev/shm
! touch /dev/shm/x 2>/dev/null
exec "$2" -c "
import sys, gids
memory = gids.MemoryOptions(host_buffer=sys.argv[2], cache='1KiB')
with gids.Loader(sys.argv[1], 'train', batch_size=16, fanouts=[3, 3], budget='64MiB', memory=memory) as loader:
    loader.prepare()
    print(sum(len(batch.seeds) for batch in loader))
" "$1" "$3"
"""
    result = unshare(script, dataset.path, sys.executable, host_buffer)
    if host_buffer == "0":
        assert result.returncode == 0, result.stderr[-3000:]
        assert int(result.stdout) == len(dataset.split("train"))
        return
    assert result.returncode == 1, result.stderr[-3000:]
    said = result.stderr.splitlines()[-1]
    assert said.startswith(
        "gids.errors.StorageError: host_buffer needs a writable /dev/shm to be shared by processes; host_buffer=0 does "
        "without: Read-only file system (errno 30) [/dev/shm/gids-"
    )


@pytest.mark.parametrize(("kind", "nodes"), [("communities", "2M"), ("rmat", "2M")])
def test_generate_on_a_full_disk_says_so(tmp_path, kind, nodes):
    (tmp_path / "small").mkdir()
    script = 'mount -t tmpfs -o size=4m none "$1"; cd /; $GIDS generate "$2" "$1/d" --nodes "$3" --dim 4 --quiet'
    result = unshare(script, tmp_path / "small", kind, nodes)
    assert result.returncode == 1, result.stderr
    assert "No space left on device" in result.stderr
    assert "free some space" in result.stderr
    assert str(tmp_path / "small") in result.stderr


def test_probe_of_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    import tempfile

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path / ".gids-probe-x"))

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(
        ConfigError, match=r"must have room for a scratch file of 1.0 MiB.*\(Permission denied\); or give a"
    ):
        probe_file(tmp_path, 1 << 20).__enter__()


def test_probe_command_without_room(tmp_path, capsys, monkeypatch):
    (tmp_path / "small").mkdir()
    script = 'mount -t tmpfs -o size=2m none "$1"; cd /; $GIDS probe "$1" --scratch 16MiB --seconds 0.2'
    result = unshare(script, tmp_path / "small")
    assert result.returncode == 1
    assert "No space left on device" in result.stderr
    assert "--scratch" in result.stderr


def test_a_curve_that_cannot_be_kept(tmp_path, monkeypatch):
    from gids.storage.curve import DEFAULT_CURVE, save_curve

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"must be writable to keep the curve .*set XDG_CACHE_HOME"):
        save_curve(tmp_path, DEFAULT_CURVE)


def test_a_damaged_ranking_is_made_again(dataset):
    from gids.tiers.rank import rank_nodes

    first = rank_nodes(dataset, by="degree")["_N"]
    (kept,) = dataset.scratch_dir.glob("rank-degree-*.npy")
    for damage in (b"", kept.read_bytes()[:100], b"\x93NUMPY\x01\x00junk"):
        kept.write_bytes(damage)
        again = rank_nodes(gids.open(dataset.path), by="degree")["_N"]
        assert (again == first).all()
    assert main(["verify", str(dataset.path)]) == 0
