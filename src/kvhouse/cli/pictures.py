"""Files with a picture of what was replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING

from kvhouse.cli.output import whole_file
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.replayer import ReplayResult, Setup, Stop
    from kvhouse.replayer.recorder import Recorder
    from kvhouse.views.picture import Picture


#: What each option's file may be called, if its name has one of these endings at all.
_ENDINGS = {"--html": (".html", ".htm"), "--png": (".png",), "--svg": (".svg",)}
#: Endings of other pictures and documents, which no option writes.
_OTHERS = (
    ".gif",
    ".jpg",
    ".jpeg",
    ".webp",
    ".avif",
    ".bmp",
    ".tif",
    ".tiff",
    ".pdf",
    ".eps",
    ".ps",
)


@dataclass(frozen=True, slots=True)
class Pictures:
    """The files that are asked for.

    Attributes:
        html: Where a page is written.
        png: Where an image is.
        svg: Where a drawing is.
        language: What they are written in.

    Raises:
        KvhouseError: An unknown language, or one that nothing is written in; or a file is called
            what it is not.
    """

    html: str | None
    png: str | None
    svg: str | None
    language: str

    def __post_init__(self) -> None:
        for option, path in self.files.items():
            _require_ending(option, path)
        if self.language != "en":
            from kvhouse.views.page.texts import texts_of

            texts_of(self.language)
            if not self:
                raise KvhouseError(f"--lang {self.language} is for --html, --png and --svg")

    def __bool__(self) -> bool:
        return any((self.html, self.png, self.svg))

    @property
    def files(self) -> dict[str, str | None]:
        """Each by its option."""
        return {"--html": self.html, "--png": self.png, "--svg": self.svg}

    def recorder(self, setup: Setup) -> Recorder | None:
        """What a drive is recorded by; None where no picture is asked for."""
        return setup.recorder() if self else None

    @contextmanager
    def open(self, stop: Stop) -> Iterator[Callable[[Picture], None]]:
        """What writes a picture into every file; each is there whole once the block ends well.

        Where ``stop`` cut the block short it is called ``FILE.partial``.

        Raises:
            KvhouseError: A file cannot be written, or what draws images, or their language, is not
            installed.
        """
        if self.png or self.svg:
            from kvhouse.views.image import fonts_of, require_matplotlib

            require_matplotlib()
            fonts_of(self.language)
        with ExitStack() as files:
            page = files.enter_context(whole_file(self.html, "page", stop))
            png = files.enter_context(whole_file(self.png, "image", stop))
            svg = files.enter_context(whole_file(self.svg, "drawing", stop))

            def write(picture: Picture) -> None:
                if page:
                    from kvhouse.views.page import page as page_of

                    page(page_of(picture, self.language).encode())
                for kind, sink in (("png", png), ("svg", svg)):
                    if sink:
                        from kvhouse.views.image import image

                        sink(image(picture, kind, self.language))

            yield write


def _require_ending(option: str, path: str | None) -> None:
    """Refuse a name whose ending says that the file is another kind of picture."""
    ending = PurePath(path or "").suffix.lower()
    own = _ENDINGS[option]
    if ending not in own and ending in (*_OTHERS, *chain(*_ENDINGS.values())):
        from kvhouse.spec.fields import show_path

        raise KvhouseError(
            f"{option} {show_path(str(path))}: writes {own[0][1:].upper()}, which is not called "
            f"{ending}: end the name in {own[0]}"
        )


def picture_of(
    setup: Setup,
    model: str,
    device: str,
    results: Sequence[ReplayResult],
    recorders: Sequence[Recorder | None],
) -> Picture:
    """Results and what was recorded beside them."""
    from kvhouse.views.picture import Drive, Picture

    drives = [
        Drive(result, recorder.recording)
        for result, recorder in zip(results, recorders, strict=True)
        if recorder
    ]
    trace = PurePath(setup.trace.name).name
    if results[-1].partial:
        trace += " (partial, ended early)"
    return Picture(trace, _public(model), _public(device), setup.layout, drives)


def _public(name: str) -> str:
    """A name without the folders of a file: where it lies is nobody's business who sees it."""
    path = PurePath(name)
    local = path.suffix in (".json", ".gguf") or name.startswith((".", "~")) or path.is_absolute()
    return path.name if local else name
