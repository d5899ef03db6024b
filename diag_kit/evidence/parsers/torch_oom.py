"""PyTorch's CUDA out-of-memory message, every generation, and its ROCm and NPU twins.

Who writes it: ``c10/cuda/CUDACachingAllocator.cpp`` through ``torch.cuda.OutOfMemoryError`` (a ``RuntimeError`` before
1.13, ``torch.OutOfMemoryError`` from 2.5). Grammars seen:

* 1.0-1.3   ``Tried to allocate 2.00 MiB (GPU 1; 11.17 GiB total capacity; 10.68 GiB already allocated; 64.00 KiB free;
  188.49 MiB cached)``: here "cached" is what is reserved but *not* allocated.
* 1.4-2.0   ``...; 2.75 GiB reserved in total by PyTorch)``: reserved includes allocated. ``8.00 GiB allowed;`` stands
  between where a memory fraction is set.
* 2.1       ``GPU 0 has a total capacty of 21.99 GiB of which 6.47 GiB is free. Process 43 has 15.51 GiB memory in use.
  Of the allocated memory 13.89 GiB is allocated by PyTorch, and 1.31 GiB is reserved by PyTorch but unallocated.``
* 2.2 on    the same with "capacity", "Including non-PyTorch memory, this process has ... memory in use", private pools.
* Ascend    ``NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; ...; 50.11 GiB current active; ...)`` as in 1.10.
* bare      ``CUDA out of memory.`` alone, a truncated message, or a re-raise that has lost its numbers. ComfyUI and
  others shorten it to ``Allocation on device``.

The message may be wrapped over several lines by a terminal, a box or a reporter. A NUL byte may stand where the
device's number should. The advice about fragmentation is always printed and says nothing.

>>> from diag_kit.evidence.text import Window, lines_of
>>> log = b"CUDA out of memory. Tried to allocate 2.00 MiB (GPU 1; 11.17 GiB total capacity; 64.00 KiB free)"
>>> [dict(event.figures) for event in parse(Window("log", lines_of(log)))]
[{'tried_to_allocate_bytes': 2097152, 'total_bytes': 11993696174, 'free_bytes': 65536}]

An empty result means that no line speaks of this allocator running out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..facts import Event
from ..text import Window
from ..torch_sizes import sizes

LITERALS = ("out of memory", "OutOfMemoryError", "Tried to allocate")

_START = re.compile(
    r"(?P<who>CUDA|HIP|NPU) out of memory(?! (?:errors?|exceptions?|issues?|problems?|handl\w*|occur\w*)\b)|(?<![\w.])(?:torch\.(?:cuda\.)?)?OutOfMemoryError: *(?=\S)(?!CUDA|HIP|XPU|NPU|Allocation on device (?:\d{1,9} )?would)|"
    r"(?<![\w.])(?:torch\.(?:cuda\.)?)?OutOfMemoryError: *$"
)
_MENTION = re.compile(r"\s*(?:#(?! ?run)|//|> |\* |- (?!INFO|ERROR|WARN)|[\w./-]+\.\w{1,5}:\d{1,7}:)")
_CODE = re.compile(r"\braise \w+\(|match=|\bprint\(|\bin str\(|\bassert\b")
_JSON_MESSAGE = re.compile(
    r'"(?:msg|message|error|exception|exc_info|traceback|log|stderr|text_payload)"\s*:\s*"[^"]*$', re.I
)
_SURVIVED = re.compile(
    r"skipping (?:this )?batch|retry(?:ing)? with|reducing (?:the )?batch size|reducing to batch|recover from OOM|, using CPU\b"
    r"|due to CUDA OOM",
    re.I,
)
_HANDLED = "out of memory with exception"
"""fairseq's handler prints the message, a table for each device, and then whether it goes on."""
_STOP = re.compile(
    r"^\s*(?:Traceback|During handling|The above exception|File \"|\[?\d{4}-\d\d-\d\d|\[?(?:INFO|DEBUG|WARNING|ERROR)\b)|it/s\]|s/it\]|out of memory",
)


def _quoted(text: str, at: int) -> bool:
    """Whether a message stands where a program, a document or a sample quotes it rather than where a run raises it.

    Inside quotes or backticks (except under a key by which a JSON log names its message), behind a comment sign or a
    grep's file and line, or in the code of a ``raise`` or ``match=``.
    """
    before = text[:at]
    if _MENTION.match(text) or _CODE.search(before):
        return True
    inside = before.count('"') % 2 == 1 or before.count("`") % 2 == 1
    return inside and not _JSON_MESSAGE.search(before)


def _survived(window: Window, index: int) -> bool:
    """Whether the code around says that it goes on; an attempt that a traceback follows has failed."""
    reach = 120 if _HANDLED in window.lines[index].text else 3
    for at, line in enumerate(window.lines[index : index + reach], index):
        if _SURVIVED.search(line.text):
            return not any(below.text.startswith("Traceback") for below in window.lines[at + 1 : at + 6])
    return False


def parse(window: Window) -> Iterator[Event]:
    """Events ``torch.oom`` (with sizes) and ``torch.oom-bare``; ``hip.oom`` and ``npu.oom`` for the twins."""
    seen_to = -1
    for index, line in enumerate(window.lines):
        if index <= seen_to or not any(literal in line.text for literal in LITERALS[:2]):
            continue
        found = _START.search(line.text)
        if not found or "Failed to clone()" in line.text:  # FSDP's warning has a format of its own
            continue
        message = window.joined(index, lines=9, stop=_STOP)
        message = message[message.find(found.group()) :]
        figures, device, processes = sizes(message)
        if figures and len(message) > len(line.text):
            seen_to = index + 1 if "Tried to allocate" in message else index
        role = "recovered" if _survived(window, index) else "originator"
        if _quoted(line.text, found.start()):
            role = "advisory"
        who = (found["who"] or "CUDA").lower()
        kind = {"hip": "hip.oom", "npu": "npu.oom"}.get(who, "torch.oom" if figures else "torch.oom-bare")
        if processes:
            figures = {**figures, "other_process_ids": processes}
        yield window.event(
            index,
            kind=kind,
            family="gpu-oom",
            role=role,
            message=message[:1500],
            figures=figures,
            device=device,
        )
