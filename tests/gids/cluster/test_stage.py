"""gids stage: to an S3 server on this machine and back, checked on the way, resumed, and refused by name."""

import asyncio
import logging
import re
import signal
import threading
import urllib.request

import numpy as np
import pytest
import torch

import gids
from gids.cli import main
from gids.cluster import stage as staging
from gids.cluster.objects import Objects
from gids.cluster.stage import StageOptions, stage
from gids.dataset import DatasetWriter, checksum
from gids.dataset.rows import read_rows
from gids.dataset.verifier import verify
from gids.errors import ConfigError, DatasetError

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'gids[stage]'")

N = 3000


@pytest.fixture(scope="module")
def server():
    """Yield the address of an S3 server with one bucket."""
    moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install moto flask flask-cors")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    address = "http://{}:{}".format(*running.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{address}/data", method="PUT"), timeout=20).close()
    yield address
    running.stop()


@pytest.fixture
def s3(server, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return "s3://data"


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Rows with padding, rows in another format's file, rows on two drives, edges: every kind of file."""
    monkeypatch.setattr(checksum, "CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(staging, "RANGE_BYTES", 1 << 13)
    generator = np.random.default_rng(0)
    np.save(tmp_path / "other.npy", generator.standard_normal((N, 5)).astype(np.float32))
    for drive in "ab":
        (tmp_path / drive).mkdir()
    with DatasetWriter(tmp_path / "g", stripe_dirs=[tmp_path / "a", tmp_path / "b"]) as writer:
        writer.add_nodes(N)
        writer.add_features(torch.randn(N, 24), stripe_rows=64)
        writer.add_features(torch.randn(N, 7), name="padded", row_stride=64)
        writer.reference_features(gids.dataset.npy_header(tmp_path / "other.npy"), name="other")
        writer.add_labels(np.arange(N) % 3)
        writer.add_split("train", np.arange(100))
        writer.add_split("val", np.arange(0))
        writer.add_csc(np.arange(N + 1), generator.integers(0, N, N))
        made = writer.finish()
    return made


def rows_of(dataset):
    return [read_rows(stored.table).tobytes() for stored in dataset.manifest.tables()]


def test_there_and_back(dataset, tmp_path, s3, capsys):
    assert main(["stage", str(dataset.path), f"{s3}/there", "--quiet"]) == 0
    assert capsys.readouterr().out == "s3://data/there: complete\n"
    assert main(["stage", f"{s3}/there", str(tmp_path / "back"), "--quiet", "--threads", "3"]) == 0
    back = gids.open(tmp_path / "back")
    assert back.id == dataset.id
    assert rows_of(back) == rows_of(dataset)
    assert verify(back) == []
    assert all(s.path.is_relative_to(back.path) for stored in back.manifest.tables() for s in stored.table.stripes)
    stage(dataset.path, f"{s3}/there")  # all of it is there
    another = tmp_path / "another"
    with DatasetWriter(another) as writer:
        writer.add_nodes(3)
        writer.finish()
    with pytest.raises(DatasetError, match=r"s3://data/there exists; choose another place"):
        stage(another, f"{s3}/there")


def url_of(path):
    path.mkdir(exist_ok=True)
    return f"file://{path}"


def test_a_cut_fetch_goes_on_where_it_was(dataset, tmp_path, monkeypatch):
    url = url_of(tmp_path / "objects")
    stage(dataset.path, url)
    monkeypatch.setattr(staging, "CHECKPOINT_BYTES", 1)
    get, asked = Objects.get, []

    def counted(store, name, begin=0, end=None):
        asked.append(name)
        if len(asked) == stop:
            raise DatasetError("the network is gone")
        return get(store, name, begin, end)

    monkeypatch.setattr(Objects, "get", counted)
    stop = -1
    stage(url, tmp_path / "whole", StageOptions(threads=1))
    whole = len(asked)
    asked, stop = [], whole // 2
    with pytest.raises(DatasetError, match="the network is gone"):
        stage(url, tmp_path / "back", StageOptions(threads=1))
    assert not (tmp_path / "back").exists()
    asked, stop = [], -1
    back = stage(url, tmp_path / "back", StageOptions(threads=1))
    assert len(asked) < whole * 3 // 4
    assert rows_of(back) == rows_of(dataset)
    assert not list(tmp_path.glob(".back*"))


def test_a_cut_sending_goes_on_and_is_no_dataset_until_it_ends(dataset, tmp_path, monkeypatch):
    url = url_of(tmp_path / "objects")
    send, sent = staging._send_file, []

    def cut(store, name, *rest):
        if len(sent) == 4:
            raise DatasetError("the network is gone")
        sent.append(name)
        send(store, name, *rest)

    monkeypatch.setattr(staging, "_send_file", cut)
    with pytest.raises(DatasetError, match="the network is gone"):
        stage(dataset.path, url)
    with pytest.raises(
        DatasetError, match=r"must hold a dataset \(it has no manifest\.json; a dataset that is being sent"
    ):
        stage(url, tmp_path / "back")
    monkeypatch.setattr(staging, "_send_file", lambda store, name, *rest: (sent.append(name), send(store, name, *rest)))
    stage(dataset.path, url)
    assert len(sent) <= 4 + len(set(sent))
    assert rows_of(stage(url, tmp_path / "back")) == rows_of(dataset)


def test_damage_is_found_on_the_way(dataset, tmp_path):
    url = url_of(tmp_path / "objects")
    stage(dataset.path, url)
    file = tmp_path / "objects/parts/_N/padded/0"
    data = bytearray(file.read_bytes())
    data[64 * 40 + 3] ^= 1
    file.write_bytes(data)
    with pytest.raises(DatasetError, match=r"_N/padded of file://.* is damaged in rows 36 to 71"):
        stage(url, tmp_path / "back")
    data[64 * 40 + 3] ^= 1
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(DatasetError, match="_N/padded/0"):
        stage(url, tmp_path / "back")
    sums = tmp_path / "objects/checksums/nodes/_N/features/padded.xxh3"
    sums.write_bytes(sums.read_bytes()[:-1] + b"?")
    with pytest.raises(DatasetError, match=r"padded\.xxh3 is damaged: it is not what the manifest names"):
        stage(url, tmp_path / "again")
    damaged = dataset.path / "nodes/_N/labels.bin"
    damaged.write_bytes(bytes([1]) * 100 + damaged.read_bytes()[100:])
    with pytest.raises(DatasetError, match="labels is damaged in row"):
        stage(dataset.path, url_of(tmp_path / "second"))
    assert not (tmp_path / "second/manifest.json").exists()
    assert not (tmp_path / "back").exists()


def test_refusals(dataset, tmp_path, s3, capsys):
    with pytest.raises(ConfigError, match="one of source and target must be a URL"):
        stage(dataset.path, tmp_path / "back")
    with pytest.raises(DatasetError, match=r"s3://data/nothing must hold a dataset"):
        stage(f"{s3}/nothing", tmp_path / "back")
    with pytest.raises(DatasetError, match="s3://none/g must be a place that objects can be put in"):
        stage(dataset.path, "s3://none/g")
    with pytest.raises(ConfigError, match=r"url must name object storage"):
        stage("carrier://pigeon", tmp_path / "back")
    with pytest.raises(ConfigError, match="threads must be at least 1"):
        StageOptions(threads=0)
    with pytest.raises(ConfigError, match=r"budget is an option of fetching \(got 1GiB"):
        stage(dataset.path, url_of(tmp_path / "objects"), StageOptions(budget="1GiB"))
    assert main(["stage", "file:///none", str(tmp_path / "back"), "--node", "1"]) == 1
    assert "--node and --nodes must be given together (got 1 and None)" in capsys.readouterr().err
    url = url_of(tmp_path / "objects")
    stage(dataset.path, url)
    assert main(["stage", url, str(tmp_path / "back"), "--budget", "10KiB"]) == 1
    assert re.search(r"budget must hold what is fetched, which takes .* \(got 10\.0 KiB\)", capsys.readouterr().err)


def test_a_node_fetches_its_part(dataset, tmp_path):
    url = url_of(tmp_path / "objects")
    stage(dataset.path, url)
    whole = dataset.feature_table()
    for node in range(2):
        words = ["stage", url, str(tmp_path / str(node)), "--node", str(node), "--nodes", "2", "--quiet"]
        assert main(words) == 0
        part = gids.open(tmp_path / str(node))
        assert part.id == dataset.id
        assert verify(part) == []
        held = part.feature_table().held
        assert held == (node * N // 2, (node + 1) * N // 2)
        assert read_rows(part.feature_table(), *held).tobytes() == read_rows(whole, *held).tobytes()
    with pytest.raises(DatasetError, match="must be a whole dataset"):
        stage(part.path, url_of(tmp_path / "second"))
    # Half of the rows fits into a budget that the whole does not fit into.
    budget = sum(stored.table.total_bytes for stored in dataset.manifest.tables()) * 3 // 4
    with pytest.raises(ConfigError, match="budget must hold"):
        stage(url, tmp_path / "third", StageOptions(budget=budget))
    assert stage(url, tmp_path / "third", StageOptions(budget=budget, part=(0, 2))).id == dataset.id


def test_a_range_that_came_damaged_is_asked_for_again(dataset, tmp_path, monkeypatch):
    url = url_of(tmp_path / "objects")
    stage(dataset.path, url)
    get, hurt = Objects.get, []

    def once(objects, name, begin=0, end=None):
        data = get(objects, name, begin, end)
        if name.endswith("labels.bin") and not hurt:
            hurt.append(name)
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    monkeypatch.setattr(Objects, "get", once)
    assert rows_of(stage(url, tmp_path / "back")) == rows_of(dataset)
    assert hurt


@pytest.mark.parametrize("way", ["fetching", "sending"])
def test_ctrl_c_ends_requests_that_nobody_answers(dataset, tmp_path, monkeypatch, way):
    import obstore

    url = url_of(tmp_path / "objects")
    asked, cancelled = threading.Event(), []

    async def never(*arguments, **options):
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(way)
            raise

    def interrupt():
        asked.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    if way == "fetching":
        stage(dataset.path, url)
    monkeypatch.setattr(obstore, "get_range_async" if way == "fetching" else "put_async", never)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have it ignored
    pressing = threading.Thread(target=interrupt)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            stage(*((url, tmp_path / "back") if way == "fetching" else (dataset.path, url)))
        pressing.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert cancelled
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("gids-stage", "gids-objects"))]
    monkeypatch.undo()
    if way == "sending":
        stage(dataset.path, url)
    assert rows_of(stage(url, tmp_path / "back")) == rows_of(dataset)


def test_large_objects_go_in_parts_and_say_how_far_they_are(s3, tmp_path):
    data = np.random.default_rng(1).bytes((17 << 20) + 5)
    sent = []
    with Objects(f"{s3}/large") as objects:
        objects.put("rows.bin", len(data), lambda begin, end: data[begin:end], 3, sent.append)
        assert objects.size("rows.bin") == len(data)
        assert objects.get("rows.bin") == data
        assert objects.get("rows.bin", 1 << 23, (1 << 23) + 7) == data[1 << 23 : (1 << 23) + 7]

        def fails(begin, end):
            raise DatasetError("the drive is gone")

        with pytest.raises(DatasetError, match="the drive is gone"):
            objects.put("none.bin", len(data), fails)
        assert objects.size("none.bin") is None
    assert sent[-1] == len(data)
    assert sorted(sent) == sent
    assert len(sent) > 2
