"""The state of PyTorch's caching allocator, changed by requests and frees as torch changes it.

The rules are those of torch's ``c10/cuda/CUDACachingAllocator.cpp``: sizes in steps of 512; requests up to 1 MiB from
segments of 2 MiB, larger ones from 20 MiB or, from 10 MiB on, from their own size in steps of 2 MiB; best fit by size,
then address, within a stream; the rest of a block becomes a free block where that is worth it; neighbours merge when
freed; and cached segments go back to the device before a request fails.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator

from ..errors import DiagKitError
from ..units import MIB, format_bytes
from .allocator_config import AllocatorConfig

DEFAULT = AllocatorConfig()
_LARGEST = 1 << 50  # bytes of one request: beyond any device, and with few enough digits to stay quick
_SHIFT = 80  # a free block's key is its size, shifted, and its address
_CHUNK = 1024
_IN_USE, _FREE, _UNMAPPED = 0, 1, 2


class OutOfMemory(Exception):  # noqa: N818 (the event, as torch names it)
    """The device has no room for a request, cached blocks given back; ``bytes`` is the request, rounded."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"no room for {format_bytes(size_bytes)}")
        self.bytes = size_bytes


class _Block:
    """A run of bytes of a segment: in use, free, or (expandable segments) without memory behind it."""

    __slots__ = ("address", "after", "before", "born", "pool", "size", "space", "state")

    def __init__(self, address: int, size: int, pool: _Pool, space: tuple[int, int] | None, state: int) -> None:
        self.address, self.size, self.pool, self.state = address, size, pool, state
        self.space = space  # (address, bytes) of the expandable segment
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.born = 0

    def follow(self, size: int, state: int) -> _Block:
        """A new block behind this one."""
        new = _Block(self.address + self.size, size, self.pool, self.space, state)
        new.before, new.after, self.after = self, self.after, new
        if new.after is not None:
            new.after.before = new
        return new

    def growable(self) -> int:
        """Bytes with the unmapped ones behind it."""
        return self.size + (self.after.size if self.after is not None and self.after.state == _UNMAPPED else 0)


class _Pool:
    """Free blocks of one stream, small or large, by size, then address.

    Their keys are kept sorted in chunks, so that no insertion moves more than one chunk; the last top is never reached.
    """

    __slots__ = ("blocks", "chunks", "page", "small", "tops", "unmapped")

    def __init__(self, small: bool, page: int) -> None:
        self.small, self.page = small, page
        self.chunks: list[list[int]] = [[]]
        self.tops = [1 << 2 * _SHIFT]
        self.blocks: dict[int, _Block] = {}  # by key
        self.unmapped: dict[int, _Block] = {}  # by address

    def add(self, block: _Block) -> None:
        key = block.size << _SHIFT | block.address
        self.blocks[key] = block
        i = bisect_left(self.tops, key)
        chunk = self.chunks[i]
        insort(chunk, key)
        if len(chunk) > _CHUNK:
            half = _CHUNK // 2
            self.chunks[i : i + 1] = [chunk[:half], chunk[half:]]
            self.tops.insert(i, chunk[half - 1])

    def remove(self, block: _Block) -> None:
        key = block.size << _SHIFT | block.address
        i = bisect_left(self.tops, key)
        self._pop(i, bisect_left(self.chunks[i], key))

    def take(self, size: int, below: int) -> _Block | None:
        """The smallest free block from ``size`` on, taken out; None where there is none ``below``."""
        key = size << _SHIFT
        i = bisect_left(self.tops, key)
        j = bisect_left(self.chunks[i], key)
        if j == len(self.chunks[i]):
            i, j = i + 1, 0
            if i == len(self.chunks):
                return None
        return self._pop(i, j) if self.chunks[i][j] >> _SHIFT < below else None

    def _pop(self, i: int, j: int) -> _Block:
        chunk = self.chunks[i]
        key = chunk.pop(j)
        if not chunk and len(self.chunks) > 1:  # the neighbour takes over its range
            del self.chunks[i]
            del self.tops[min(i, len(self.chunks) - 1)]
        return self.blocks.pop(key)

    def at_least(self, size: int) -> Iterator[_Block]:
        """Free blocks from this size on; the pool must not change meanwhile."""
        key = size << _SHIFT
        i = bisect_left(self.tops, key)
        j = bisect_left(self.chunks[i], key)
        for chunk in self.chunks[i:]:
            for k in range(j, len(chunk)):
                yield self.blocks[chunk[k]]
            j = 0


class Allocator:
    """The allocator; ``malloc``, ``free`` and ``empty_cache`` change it as they would in torch.

    Args:
        config: the allocator's settings.
        capacity_bytes: what the device can give to this allocator: its memory less context and other users; None for
            a device without end. A memory fraction is taken of this.

    ``allocated`` are the blocks handed out (rounded, with an unsplit rest), ``reserved`` the segments, in bytes and
    each with its ``peak_``. A block is active exactly as long as it is allocated: uses by other streams, which delay
    a free, are not recorded. ``reserved_at_peak``: reserved at the peak of allocated. ``segments_at_peak``: segments at
    the peak of reserved. ``fragmentation``: the most bytes that lay unused in segments when more had to be reserved.
    ``retries``: how often the cache was given back because the device was full. ``next_address``: where the next
    segment will lie; set it, to hold a replay against recorded addresses. A call takes logarithmic time.
    """

    def __init__(self, config: AllocatorConfig = DEFAULT, capacity_bytes: int | None = None) -> None:
        self.config, self.capacity_bytes = config, capacity_bytes
        self._room = _LARGEST if capacity_bytes is None else capacity_bytes
        self._limit = None if config.memory_fraction is None else int(config.memory_fraction * self._room)
        self._threshold = int(config.garbage_collection_threshold * (self._limit or 0))
        self._collects = bool(config.garbage_collection_threshold) and self._limit is not None
        self._max_split = config.max_split_bytes or _LARGEST
        self._pools: dict[tuple[bool, Hashable], _Pool] = {}
        self._live: dict[Hashable, _Block] = {}
        self.next_address = self._segments = 0
        self._searches = {True: 0, False: 0}  # by small: the clock by which cached blocks age
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.reserved_at_peak = self.segments_at_peak = self.fragmentation = self.retries = 0

    @property
    def segments(self) -> list[tuple[int, int, int]]:
        """Each segment, or each run of mapped pages, by address: (address, bytes, bytes of it allocated)."""
        blocks = [*self._live.values(), *(block for pool in self._pools.values() for block in pool.blocks.values())]
        out: list[tuple[int, int, int]] = []
        for block in sorted(blocks, key=lambda block: block.address):
            address, size, used = block.address, 0, 0
            if block.before is not None and block.before.state != _UNMAPPED:
                address, size, used = out.pop()
            out.append((address, size + block.size, used + block.size * (block.state == _IN_USE)))
        return out

    def malloc(self, key: Hashable, size_bytes: int, stream: Hashable = 0) -> int:
        """Allocates under a name, and returns the address, in a made-up address space.

        Errors: DiagKitError where the name is allocated already or the size is no size; OutOfMemory where the device
        is full, after which the allocator can be used on.
        """
        if key in self._live:
            raise DiagKitError(f"{_named(key)} is allocated already; it must be freed before it is allocated again")
        if not 0 < size_bytes < _LARGEST:
            raise DiagKitError(f"{_named(key)} asks for {'more than any device has' if size_bytes > 0 else 'no bytes'}")
        config = self.config
        size = config.round(size_bytes) if config.roundup_divisions else (size_bytes + 511) & ~511
        small = size <= MIB
        pool = self._pools.get((small, stream))
        if pool is None:
            pool = self._pools[small, stream] = _Pool(small, 2 * MIB if small else config.large_segment_bytes)
        if self._collects:
            self._searches[small] += 1
        below = self._max_split if size < self._max_split else size + config.max_non_split_rounding_bytes
        block = self._best(pool, size, below) if config.expandable_segments else pool.take(size, below)
        if block is None:
            block = self._grow(pool, size)
        rest = block.size - size
        if rest >= 512 and (small or config.expandable_segments or (rest > MIB and size < self._max_split)):
            block.size = size
            self._keep(block.follow(rest, _FREE))
        block.state = _IN_USE
        self._live[key] = block
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated, self.reserved_at_peak = self.allocated, self.reserved
        return block.address

    def free(self, key: Hashable) -> None:
        """Frees what was allocated under a name; DiagKitError where nothing is."""
        block = self._live.pop(key, None)
        if block is None:
            raise DiagKitError(f"{_named(key)} is freed, but is not allocated")
        self.allocated -= block.size
        self._settle(block, _FREE)

    def empty_cache(self) -> None:
        """Gives segments without an allocated block back to the device, as ``torch.cuda.empty_cache`` does."""
        for pool in self._pools.values():
            for block in list(pool.blocks.values()):
                if block.space is not None:
                    self._unmap(block, *block.space)
                elif block.before is None and block.after is None:
                    self._release(block)

    def _best(self, pool: _Pool, size: int, below: int) -> _Block | None:
        """Among expandable segments a block counts as large as it can grow, so that their ends are used last."""
        found = pool.at_least(size)
        block = next(found, None)
        if block is None:
            return None
        while block.after is not None and block.after.state == _UNMAPPED:
            other = next(found, None)
            if other is None or other.growable() >= block.growable():
                break
            block = other
        if block.size >= below:
            return None
        pool.remove(block)
        return block

    def _grow(self, pool: _Pool, size: int) -> _Block:
        """A block from more memory of the device, for which the cache is given back as far as that is needed."""
        if self._collects:
            self._collect()
        block = self._reserve(pool, size)
        if block is None and self.config.max_split_bytes and self._release_oversize(pool, size):
            block = self._reserve(pool, size)
        if block is None:
            self.retries += 1
            self.empty_cache()
            block = self._reserve(pool, size)
        if block is None:
            raise OutOfMemory(size)
        self.fragmentation = max(self.fragmentation, self.reserved - self.allocated - block.size)
        return block

    def _reserve(self, pool: _Pool, size: int) -> _Block | None:
        own = -(-size // (2 * MIB)) * 2 * MIB
        segment = 2 * MIB if pool.small else self.config.large_segment_bytes if size < 10 * MIB else own
        if self._limit is not None and self.reserved + segment > self._limit:
            return None
        if self.config.expandable_segments:
            return self._extend(pool, size)
        if self.reserved + segment > self._room:
            return None
        block = _Block(self.next_address, segment, pool, None, _FREE)
        self.next_address += segment
        self._segments += 1
        self._took(segment)
        return block

    def _extend(self, pool: _Pool, size: int) -> _Block | None:
        """Maps pages of an expandable segment, at the lowest address where free and unmapped bytes make the request."""
        block: _Block | None
        for address in sorted(pool.unmapped):
            first = pool.unmapped[address]
            if first.before is not None and first.before.state != _IN_USE:
                first = first.before
            span, block = 0, first
            while span < size and block is not None and block.state != _IN_USE:
                span, block = span + block.size, block.after
            if span >= size:
                break
        else:  # a new segment of addresses, an eighth more than the device has bytes
            space = -(-(self._room + self._room // 8) // pool.page) * pool.page
            first = _Block(self.next_address, space, pool, (self.next_address, space), _UNMAPPED)
            self.next_address += space
            self._segments += 1
            pool.unmapped[first.address] = first
        block = first
        if block.state == _UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            missing, block = size - block.size, block.after
            if block is None or not self._map(block, min(missing, block.size)):
                return None
        pool.remove(block)
        return block

    def _map(self, block: _Block, size: int) -> bool:
        """Puts memory behind an unmapped block's first pages, and merges it; False where no memory is left."""
        pool = block.pool
        mapped = -(-size // pool.page) * pool.page
        if self.reserved + mapped > self._room:
            return False
        del pool.unmapped[block.address]
        rest, block.size = block.size - mapped, mapped
        if rest:
            unmapped = block.follow(rest, _UNMAPPED)
            pool.unmapped[unmapped.address] = unmapped
        self._took(mapped)
        self._settle(block, _FREE)
        return True

    def _unmap(self, block: _Block, base: int, space: int) -> None:
        """Takes the memory from behind a free block's whole pages; bytes on pages shared with others stay free."""
        pool, page = block.pool, block.pool.page
        head = (base - block.address) % page
        size = (block.size - head) // page * page
        if size <= 0:
            return
        pool.remove(block)
        tail, block.size = block.size - head - size, head + size
        if tail:
            self._keep(block.follow(tail, _FREE))
        if head:
            block.size = head
            front, block = block, block.follow(size, _FREE)
            self._keep(front)
        self.reserved -= size
        self._settle(block, _UNMAPPED)
        if block.size == space:
            del pool.unmapped[block.address]
            self._segments -= 1

    def _settle(self, block: _Block, state: int) -> None:
        """Merges a block with its neighbours in the same state, and files it."""
        pool = block.pool
        other = block.before
        if other is not None and other.state == state:
            pool.remove(other) if state == _FREE else pool.unmapped.pop(other.address)
            block.address, block.size, block.before = other.address, other.size + block.size, other.before
            if block.before is not None:
                block.before.after = block
        other = block.after
        if other is not None and other.state == state:
            pool.remove(other) if state == _FREE else pool.unmapped.pop(other.address)
            block.size, block.after = block.size + other.size, other.after
            if block.after is not None:
                block.after.before = block
        block.state = state
        if state == _FREE:
            self._keep(block)
        else:
            pool.unmapped[block.address] = block

    def _keep(self, block: _Block) -> None:
        if self._collects:
            block.born = self._searches[block.pool.small]
        block.pool.add(block)

    def _took(self, size: int) -> None:
        self.reserved += size
        if self.reserved > self.peak_reserved:
            self.peak_reserved, self.segments_at_peak = self.reserved, self._segments

    def _release(self, block: _Block) -> None:
        block.pool.remove(block)
        self.reserved -= block.size
        self._segments -= 1

    def _release_oversize(self, pool: _Pool, size: int) -> bool:
        """Under max_split: gives back one cached block that is large enough, or several, the largest first."""
        oversize = [block for block in pool.at_least(self._max_split) if block.space is None]
        enough = next((block for block in oversize if block.size >= size), None)
        released = 0
        while released < size and oversize:
            block = enough or oversize.pop()
            released += block.size
            self._release(block)
        return released >= size

    def _collect(self) -> None:
        """Under a memory fraction and a threshold: gives back whole cached segments, those unused for longest first."""
        excess = self.reserved - self._threshold
        pools = [pool for (small, _), pool in self._pools.items() if not small]
        cached = [b for pool in pools for b in pool.blocks.values() if not (b.before or b.after)]
        now = self._searches[False]
        while excess > 0 and cached:  # the oldest is never younger than the mean
            mean = sum(now - block.born for block in cached) / len(cached)
            old = [block for block in cached if now - block.born >= mean]
            cached = [block for block in cached if now - block.born < mean]
            for block in old:
                excess -= block.size
                self._release(block)


def _named(key: Hashable) -> str:
    return "a name of many digits" if isinstance(key, int) and key.bit_length() > 128 else f"{key!r:.40}"
