"""A file as the text in it: plain, gzip, bzip2, xz or Zstandard, UTF-16 as UTF-8, read front to back.

Told by the first bytes, not by the name. An archive that was cut off gives what it holds and says so; one that expands
beyond reason is left at that. isal (PSF) and backports.zstd (PSF) serve where they are installed; gzip, bzip2 and xz
need nothing.
"""

from __future__ import annotations

import codecs
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import EvidenceError

_CHUNK = 256 << 10
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "Zstandard"))
SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_USUAL_FOLD = 8
_MOST_FOLD, _SUSPECT = 2_000, 4 << 30
"""Text seldom shrinks more than a hundredfold; what expands more than this, and to more than that, was made to."""


class Text(io.RawIOBase):
    """A stream of a file's text.

    Attributes:
        codec: gzip, bzip2, xz, Zstandard, UTF-16, or empty for plain bytes.
        size: bytes of the text where known, else 0; ``about`` is a guess where it is not.
        raw_read: bytes of the file consumed so far.
        note: why the text ended early; empty where it did not.
    """

    def __init__(self, stream: BinaryIO, size: int, codec: str) -> None:
        super().__init__()
        self._stream, self._bytes, self.codec = stream, size, codec
        self.size = 0 if codec else size
        self.about = self.size or size * (_USUAL_FOLD if codec != "UTF-16" else 1)
        self.note = ""
        self.raw_read = self._out = 0
        self._pending = b""
        self._machine: Any = None if codec in ("", "UTF-16") else _machine(codec)
        self._decode: codecs.IncrementalDecoder | None = None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def readinto(self, into: Any) -> int:
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, fewer only at the end."""
        if size < 0:
            return b"".join(iter(lambda: self.read(1 << 20), b""))
        if not self.codec:
            data = self._stream.read(size)
            self.raw_read += len(data)
            return data
        parts, got = [self._pending[:size]], min(size, len(self._pending))
        self._pending = self._pending[size:]
        while got < size:
            data = self._more(size - got)
            if not data:
                break
            parts.append(data[: size - got])
            self._pending = data[size - got :]
            got += len(parts[-1])
        self._out += got
        return b"".join(parts)

    def _raw(self) -> bytes:
        data = self._stream.read(_CHUNK)
        self.raw_read += len(data)
        return data

    def _more(self, size: int) -> bytes:
        """The next bytes of text; empty at the end, whatever ended it."""
        if self.codec == "UTF-16":
            while data := self._raw():
                if self._decode is None:
                    marked = data[:2] in (b"\xff\xfe", b"\xfe\xff")
                    self._decode = codecs.getincrementaldecoder("utf-16" if marked else "utf-16-le")("replace")
                if text := self._decode.decode(data):
                    return text.encode("utf-8", "replace")
            return b""
        if self._out > max(_SUSPECT, self._bytes * _MOST_FOLD):
            self.note = f"expands more than {_MOST_FOLD:,}-fold; the rest was not read"
            return b""
        try:
            return bytes(self._machine.more(self._raw, size))
        except EOFError:
            self.note = f"the {self.codec} data ends in the middle; what it holds up to there was read"
        except Exception as error:  # noqa: BLE001 (each library raises errors of its own over broken data)
            self.note = f"broken {self.codec} data ({str(error)[:80] or type(error).__name__}); read up to there"
        self._machine = _Ended()
        return b""


class _Ended:
    def more(self, raw: Any, size: int) -> bytes:
        return b""


class _Members:
    """Compressed members one after the other; what stands behind the last one and is none is left."""

    def __init__(self, make: Any) -> None:
        self._make, self._now, self._rest, self._members, self._fresh = make, make(), b"", 0, True

    def more(self, raw: Any, size: int) -> bytes:
        while True:
            if self._now.eof:
                self._members += 1
                self._rest = (self._now.unused_data or raw()).lstrip(b"\0")
                if not self._rest:
                    return b""
                self._now, self._fresh = self._make(), True
            data = self._rest
            if not data and self._now.needs_input and not (data := raw()):
                if self._members and self._fresh:
                    return b""
                raise EOFError
            self._rest = b""
            try:
                text = self._now.decompress(data, size)
            except Exception:
                if self._members and self._fresh:
                    return b""
                raise
            if text:
                self._fresh = False
                return bytes(text)


class _Gzip:
    """zlib's object under the names that the other decompressors have."""

    def __init__(self) -> None:
        import zlib

        self._object = zlib.decompressobj(31)

    eof = property(lambda self: self._object.eof)
    unused_data = property(lambda self: self._object.unused_data)
    needs_input = property(lambda self: not self._object.unconsumed_tail)

    def decompress(self, data: bytes, size: int) -> bytes:
        return self._object.decompress(self._object.unconsumed_tail + data, size)


def _machine(codec: str) -> _Members:
    """Decompressor of a codec.

    Raises:
        EvidenceError: it needs a package that is not installed.
    """
    if codec == "gzip":
        try:
            from isal import igzip_lib
        except ImportError:
            return _Members(_Gzip)
        return _Members(lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP))
    if codec == "bzip2":
        import bz2

        return _Members(bz2.BZ2Decompressor)
    if codec == "xz":
        import lzma

        return _Members(lambda: lzma.LZMADecompressor(memlimit=512 << 20))
    try:
        try:
            from compression import zstd  # Python 3.14
        except ImportError:
            from backports import zstd
    except ImportError:
        raise EvidenceError("Zstandard data; pip install backports.zstd, or unpack it with zstd -d") from None
    return _Members(zstd.ZstdDecompressor)


def codec_of(head: bytes) -> str:
    """How the text is packed, by a file's first bytes."""
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    wide = len(head) > 3 and head[1::2].count(0) > len(head) * 0.4 and head[::2].count(0) < len(head) * 0.1
    return "UTF-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") or wide else ""


def open_text(path: str | os.PathLike[str]) -> Text:
    """A file as a stream of its text.

    Raises:
        OSError: it can't be opened.
        EvidenceError: it is packed in a way that needs a package which is not installed.
    """
    stream = Path(path).open("rb", buffering=0)  # noqa: SIM115 (Text closes it)
    try:
        head = stream.read(4096) or b""
        stream.seek(0)
        return Text(stream, os.fstat(stream.fileno()).st_size, codec_of(head))
    except BaseException:
        stream.close()
        raise
