"""Reader of models on the Hugging Face Hub: the config and the headers, never the weights.

Names, tokens and endpoints are huggingface_hub's business (``HF_TOKEN``, ``HF_ENDPOINT``, the file
that ``hf auth login`` writes). The bytes are read here, by ranges and within bounds: the library
reads all of a file whose server ignores a range.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import ModuleType
from typing import Protocol, cast

from kvhouse.errors import SpecError
from kvhouse.spec.checkpoint import checkpoint_spec
from kvhouse.spec.fields import show_path
from kvhouse.spec.gguf_header import MOST_HEADER_BYTES, Header, NeedMore, parse_header
from kvhouse.spec.gguf_reader import gguf_spec, joined, part_names, parts_of
from kvhouse.spec.model import ModelSpec

#: Seconds that a server may take to connect or to send the next bytes.
TIMEOUT = 10.0
#: Bytes of a GGUF file that are read at first. Where the header goes on, as many again are read,
#: and so forth: its length is stated nowhere.
_FIRST_BYTES = 2**18


class Response(Protocol):
    """What is used of the library's answer to a request."""

    status_code: int
    headers: Mapping[str, str]

    def iter_bytes(self, chunk_size: int) -> Iterator[bytes]:
        """The body, as it arrives."""


class Missing(SpecError):
    """A file is not in the repository."""


class NoModel(SpecError):
    """There is no such model, or nothing can be learnt of it: no network, no access."""


def read_hub(name: str) -> ModelSpec:
    """Read ``org/name``, ``org/name@revision`` or ``org/name/file.gguf`` of the hub.

    Raises:
        NoModel: There is no such model, it needs a token, the network fails or
            ``huggingface_hub`` is not installed.
        SpecError: A revision or a file is missing, the server fails, or a file is damaged.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    path, _, revision = name.partition("@")
    owner, model, *inner = path.split("/")
    repository = Repository(f"{owner}/{model}", revision or None)
    if inner:
        return _read_gguf(repository, "/".join(inner), name)
    if not repository.has("config.json"):
        raise NoModel(
            f"{repository}: there is no such model, or it has no config.json; of a repository of "
            f"GGUF files name one: {repository.name}/FILE.gguf"
        )
    return checkpoint_spec(repository, name)


class Repository:
    """A repository of the hub at one revision, as a source of files."""

    def __init__(self, name: str, revision: str | None) -> None:
        """Name the repository; nothing is read yet."""
        self.name = name
        self.revision = revision

    def __str__(self) -> str:
        """How messages call it."""
        return f"hub model {show_path(self.name)}" + (
            f" at {show_path(self.revision)}" if self.revision else ""
        )

    def where(self, name: str) -> str:
        """How messages call a file."""
        return f"{self}: {show_path(name)}"

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        try:
            self.head(name, 0, 1)
        except Missing:
            return False
        return True

    def lone(self) -> str | None:
        """None: the hub's repositories name their files in the usual way."""
        return None

    def read(self, name: str, most: int) -> bytes:
        """A whole file."""
        data, size = self.head(name, 0, most)
        if size > most:
            raise SpecError(f"{self.where(name)}: {size} bytes; at most {most} are read")
        return data

    def head(self, name: str, start: int, stop: int) -> tuple[bytes, int]:
        """Bytes ``start`` to ``stop`` of a file, and the file's size.

        Raises:
            Missing: There is no such file.
            SpecError: The server refuses, fails, or does not know ranges.
        """
        with self._errors(name), self._response(name, start, stop) as response:
            if response.status_code == 416:  # an empty file, or one that ends before the range
                return b"", _size(response)
            self._check(name, response)
            if _start(response) != start:
                raise SpecError(f"{self.where(name)}: the server does not read parts of files")
            data = bytearray()
            for piece in response.iter_bytes(2**16):
                data += piece
                if len(data) >= stop - start:
                    break
            return bytes(data[: stop - start]), _size(response)

    def _response(self, name: str, start: int, stop: int) -> AbstractContextManager[Response]:
        """The open response, whose body is not yet read."""
        hub = _library()
        url = hub.hf_hub_url(
            self.name,
            name,
            revision=self.revision,
            endpoint=os.environ.get("HF_ENDPOINT") or None,
        )
        headers = hub.utils.build_hf_headers(library_name="kvhouse")
        # Ranges count the bytes of the file, not those of a compressed form.
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        response = hub.utils.get_session().stream(
            "GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True
        )
        return cast("AbstractContextManager[Response]", response)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Turn the network's failures into errors that say what to do."""
        hub = _library()
        errors = hub.errors
        # The library's HTTP client, whose name changed between its versions.
        httpx = import_module(type(hub.utils.get_session()).__module__.partition(".")[0])
        try:
            yield
        except errors.OfflineModeIsEnabled:
            raise NoModel(f"{self}: HF_HUB_OFFLINE is set, so nothing is read") from None
        except errors.HFValidationError as error:
            raise SpecError(
                f"{self}: not a name of the hub: {str(error).splitlines()[0]}"
            ) from None
        except (httpx.InvalidURL, UnicodeError):
            raise SpecError(f"{self}: HF_ENDPOINT or HF_TOKEN is malformed") from None
        except httpx.TimeoutException:
            reason = f"no answer within {TIMEOUT:g} seconds"
            raise NoModel(f"{self.where(name)}: {reason}; try again later") from None
        except httpx.HTTPError as error:
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise NoModel(
                f"{self}: the hub cannot be reached ({show_path(problem)}); check the network, or "
                "HF_ENDPOINT if it is set"
            ) from None

    def _check(self, name: str, response: Response) -> None:
        """Raise for an answer that is not the file."""
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        if status in (200, 206):
            return
        if code == "EntryNotFound" or (status == 404 and not code):
            raise Missing(f"{self.where(name)}: there is no such file")
        if code == "RevisionNotFound":
            raise SpecError(f"{self}: there is no such revision")
        if code == "GatedRepo":
            raise SpecError(
                f"{self}: access must be granted to you: ask for it on the model's page, and set "
                "HF_TOKEN or run: hf auth login"
            )
        if code == "RepoNotFound" or status in (401, 403):
            raise NoModel(
                f"{self}: there is no such model, or it is private and needs a token with access: "
                "check the name, set HF_TOKEN or run: hf auth login"
            )
        raise SpecError(f"{self.where(name)}: the hub answers with status {status}")


def _library() -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise NoModel(
            "models of the hub need the huggingface_hub package: pip install 'kvhouse[hub]'"
        ) from None
    return huggingface_hub


def _start(response: Response) -> int:
    """Where in the file the body starts."""
    if response.status_code != 206:
        return 0
    stated = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(stated) if stated.isdecimal() and len(stated) < 19 else -1


def _size(response: Response) -> int:
    """The size of the whole file."""
    stated = response.headers.get("Content-Range", "").rpartition("/")[2]
    stated = stated or response.headers.get("Content-Length", "")
    if not stated.isdecimal() or len(stated) > 18:
        raise SpecError("the hub does not say how large a file is")
    return int(stated)


def _read_gguf(repository: Repository, file: str, name: str) -> ModelSpec:
    where = repository.where(file)
    header = _header(repository, file)
    count = parts_of(header, where)
    if count > 1:
        folder, _, last = file.rpartition("/")
        names = [f"{folder}/{part}".lstrip("/") for part in part_names(last, count, where)]
        header = joined([_header(repository, part) for part in names], where)
    return gguf_spec(header, name, where)


def _header(repository: Repository, file: str) -> Header:
    """The header of a GGUF file, of which more is read as long as the header goes on."""
    where, held, wanted = repository.where(file), b"", _FIRST_BYTES
    while True:
        more, size = repository.head(file, len(held), wanted)
        held += more
        try:
            return parse_header(held, size, where)
        except NeedMore as need:
            if len(held) < min(wanted, size) or len(held) >= MOST_HEADER_BYTES:
                problem = f"{len(held)} bytes came, and its header takes {need.args[0]}"
                raise SpecError(f"{where}: truncated: {problem}") from None
            wanted = min(max(int(need.args[0]), 2 * wanted), MOST_HEADER_BYTES, size)
