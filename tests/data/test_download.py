"""Downloads, against a server of our own: complete and checked, or nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dpsinkhorn.data import DataError, DownloadError, get, load_dataset
from dpsinkhorn.data.named import KNOWN, KnownDataset, RemoteFile, download_file, get_known

CONTENT = np.random.default_rng(2).bytes(300_000)


@dataclass
class Server:
    """What to send for each path, and in which broken way."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server():
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked.append(self.path)
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: state.cut_after])

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        state.url = f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def remote(server: Server, content: bytes = CONTENT, name: str = "a.gz") -> RemoteFile:
    server.files[f"/{name}"] = content
    return RemoteFile(name, (f"{server.url}/{name}",), len(content), hashlib.sha256(content).hexdigest())


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestFile:
    def test_arrives(self, server, tmp_path):
        seen = []
        path = download_file(remote(server), tmp_path, progress=lambda *step: seen.append(step))
        assert path.read_bytes() == CONTENT
        assert names(tmp_path) == ["a.gz"]
        assert seen[-1] == ("a.gz", 300_000, 300_000)
        assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)

    def test_is_not_fetched_twice(self, server, tmp_path):
        file = remote(server)
        download_file(file, tmp_path)
        download_file(file, tmp_path)
        assert server.asked == ["/a.gz"]

    def test_another_file_of_that_name_is_left_alone(self, server, tmp_path):
        (tmp_path / "a.gz").write_bytes(b"mine")
        with pytest.raises(DownloadError, match="move it away"):
            download_file(remote(server), tmp_path)
        assert (tmp_path / "a.gz").read_bytes() == b"mine"

    def test_wrong_checksum(self, server, tmp_path):
        file = remote(server)
        server.files["/a.gz"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
        with pytest.raises(DownloadError, match="checksum"):
            download_file(file, tmp_path)
        assert names(tmp_path) == []

    @pytest.mark.parametrize("cut", [0, 1000, 299_999])
    def test_cut_connection(self, server, tmp_path, cut):
        server.cut_after = cut
        with pytest.raises(DownloadError, match="broke off"):
            download_file(remote(server), tmp_path)
        assert names(tmp_path) == []

    def test_too_much(self, server, tmp_path):
        file = remote(server)
        server.files["/a.gz"] = CONTENT + b"x"
        with pytest.raises(DownloadError, match="more than"):
            download_file(file, tmp_path)
        assert names(tmp_path) == []

    def test_not_found(self, server, tmp_path):
        file = remote(server)
        server.files.clear()
        with pytest.raises(DownloadError, match="404"):
            download_file(file, tmp_path)
        assert names(tmp_path) == []

    def test_no_server(self, tmp_path):
        with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
            url = f"http://127.0.0.1:{closed.server_address[1]}/a.gz"
        with pytest.raises(DownloadError, match="cannot be reached") as caught:
            download_file(RemoteFile("a.gz", (url,), 1, ""), tmp_path)
        assert "\n" not in str(caught.value)
        assert names(tmp_path) == []

    def test_the_second_place_helps_out(self, server, tmp_path):
        good = remote(server)
        file = RemoteFile("a.gz", (f"{server.url}/gone", *good.urls), good.length, good.sha256)
        assert download_file(file, tmp_path).read_bytes() == CONTENT
        assert server.asked == ["/gone", "/a.gz"]

    def test_only_https_beyond_this_machine(self, tmp_path):
        with pytest.raises(DownloadError, match="not https"):
            download_file(RemoteFile("a.gz", ("http://example.org/a.gz",), 1, ""), tmp_path)

    def test_stopped_by_the_user(self, server, tmp_path):
        def stop(*_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            download_file(remote(server), tmp_path, progress=stop)
        assert names(tmp_path) == []


def small_set(files: tuple[RemoteFile, ...], name: str = "mnist") -> KnownDataset:
    """A known data set whose files are ours."""
    return replace(KNOWN[name], files=files, system_places=())


def idx_files(server: Server) -> tuple[RemoteFile, ...]:
    files = []
    for stem, shape in (("train-images-idx3", (4, 28, 28)), ("train-labels-idx1", (4,))):
        for name in (stem, stem.replace("train", "t10k")):
            header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            content = gzip.compress(header + bytes(int(np.prod(shape))))
            files.append(remote(server, content, f"{name}-ubyte.gz"))
    return tuple(files)


class TestSet:
    def test_arrives_and_loads(self, server, tmp_path):
        known = small_set(idx_files(server))
        place = get_known(known, tmp_path / "data")
        assert place == tmp_path / "data" / "mnist"
        assert len(names(place)) == 4
        assert load_dataset(place, split="test").records == 4
        assert get_known(known, tmp_path / "data") == place
        assert len(server.asked) == 4

    def test_goes_on_where_it_stopped(self, server, tmp_path):
        files = idx_files(server)
        kept = server.files.pop(files[2].urls[0].removeprefix(server.url))
        known = small_set(files)
        with pytest.raises(DownloadError, match=r"404.*put its four idx files"):
            get_known(known, tmp_path)
        assert len(names(tmp_path / "mnist")) == 2
        server.files[files[2].urls[0].removeprefix(server.url)] = kept
        server.asked.clear()
        get_known(known, tmp_path)
        assert len(server.asked) == 2

    def test_leaves_no_empty_folder(self, server, tmp_path):
        files = idx_files(server)
        server.files.clear()
        with pytest.raises(DownloadError, match="404"):
            get_known(small_set(files), tmp_path / "data")
        assert names(tmp_path) == []

    def test_an_archive_yields_its_batches_and_nothing_else(self, server, tmp_path):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:

            def add(name, content=b"", link=None):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                if link is not None:
                    member.type, member.linkname = tarfile.SYMTYPE, link
                archive.addfile(member, io.BytesIO(content))

            for k in range(1, 6):
                add(f"cifar-10-batches-bin/data_batch_{k}.bin", bytes([k]) + bytes(3072))
            add("../escaped.txt", b"no")
            add("/tmp/escaped-absolutely.txt", b"no")
            add("cifar-10-batches-bin/readme.html", b"no")
            add("cifar-10-batches-bin/test_batch.bin", link="/etc/passwd")
            add("cifar-10-batches-bin/test_batch.bin", bytes([9]) + bytes(3072))
        file = remote(server, stream.getvalue(), "cifar-10-binary.tar.gz")
        place = get_known(small_set((file,), "cifar10"), tmp_path / "data")
        assert place == tmp_path / "data" / "cifar10" / "cifar-10-batches-bin"
        assert len(names(place)) == 6
        assert names(tmp_path / "data" / "cifar10") == ["cifar-10-batches-bin"]
        assert names(tmp_path) == ["data"]
        assert load_dataset("cifar10", folder=tmp_path / "data").labels.tolist() == [1, 2, 3, 4, 5]
        assert load_dataset("cifar10", folder=tmp_path / "data", split="test").labels.tolist() == [9]

    def test_a_folder_that_cannot_be_written(self, server, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(DownloadError, match="cannot write"):
            get_known(small_set(idx_files(server)), tmp_path / "file")

    def test_no_automatic_source(self, tmp_path):
        with pytest.raises(DownloadError, match="celeba has no automatic source: accept its terms"):
            get("celeba", tmp_path)

    def test_unknown_names(self, tmp_path):
        with pytest.raises(DataError, match="known are digits, mnist"):
            get("imagenet", tmp_path)

    def test_digits_are_there(self):
        assert (get("digits") / "datasets").is_dir()
