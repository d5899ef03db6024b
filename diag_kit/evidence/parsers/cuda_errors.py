"""CUDA errors that mean "out of memory" without torch's numbers, and library calls that found no room.

* THC, torch <= 0.4: ``THCudaCheck FAIL file=... line=58 error=2 : out of memory`` and
  ``RuntimeError: cuda runtime error (2) : out of memory at .../THCStorage.cu:58``. Code 2 is memory; 59 and 77 are not.
* ``RuntimeError: CUDA error: out of memory``: context creation, pinned host memory, NCCL, or an asynchronous report.
  ``HIP error: out of memory``, ``CUDA driver error: ...`` and ``Triton Error [CUDA]: out of memory`` are the same.
* cuBLAS and cuDNN: ``CUBLAS_STATUS_ALLOC_FAILED``, ``CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate``, ``CUDNN_STATUS_NOT_INITIALIZED``, ``CUDNN_STATUS_ALLOC_FAILED``,
  ``Unable to find a valid cuDNN algorithm to run convolution``: often a full card, but also a broken or mismatched
  installation, so these events never decide alone.
* thrust and cub: ``MemoryError: std::bad_alloc: cudaErrorMemoryAllocation: out of memory``: the GPU, in spite of the
  name.

None of them states a size. An empty result means that none of these was printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..facts import Event
from ..text import Window

LITERALS = (
    "out of memory",
    "CUBLAS_STATUS_",
    "CUDNN_STATUS_",
    "valid cuDNN algorithm",
    "FWD algo",
    "cudaErrorMemoryAllocation",
    "hipErrorOutOfMemory",
    "CUDA_ERROR_OUT_OF_MEMORY",
)

_KINDS = (
    ("thc.oom", re.compile(r"cuda runtime error \(2\)|THCudaCheck FAIL .*error=2 ")),
    ("thrust.oom", re.compile(r"std::bad_alloc: .*(?:cudaErrorMemoryAllocation|out of memory)")),
    (
        "cuda.error-oom",
        re.compile(
            r"(?:CUDA|HIP)(?: driver)? error: out of memory|Error \[(?:CUDA|HIP)\]: out of memory|cudaErrorMemoryAllocation|"
            # TensorFlow's lines of the last name state sizes and have a format of their own.
            r"hipErrorOutOfMemory|(?<!from device: )(?<!on host: )CUDA_ERROR_OUT_OF_MEMORY"
        ),
    ),
    (
        "cublas.alloc-failed",
        re.compile(r"CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED when calling .?cublasCreate"),
    ),
    (
        "cudnn.failed",
        re.compile(
            r"CUDNN_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|Unable to find a valid cuDNN algorithm|"
            r"cuDNN isn't found FWD algo|no valid convolution algorithms"
        ),
    ),
)


def parse(window: Window) -> Iterator[Event]:
    """Events of family gpu-oom without figures."""
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            continue
        for kind, pattern in _KINDS:
            if pattern.search(line.text):
                yield window.event(
                    index,
                    kind=kind,
                    family="gpu-oom",
                    message=line.text.strip()[:500],
                )
                break
