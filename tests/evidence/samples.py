"""One realistic sample for each parser, written for these tests, and the kinds of fact that it must give."""

SAMPLES: dict[str, tuple[str, list[str]]] = {
    "torch_oom": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 2 has a total capacity of 47.43 GiB of which 1.25 GiB is free. "
        "Process 771 has 512.00 MiB memory in use. Including non-PyTorch memory, this process has 45.60 GiB memory in use. Of the allocated memory "
        "41.00 GiB is allocated by PyTorch, with 96.00 MiB allocated in private pools (e.g., CUDA Graphs), and 4.10 GiB is reserved by PyTorch but "
        "unallocated.",
        ["torch.oom"],
    ),
    "cuda_errors": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ["cublas.alloc-failed"],
    ),
    "cuda_malloc_async": (
        "RuntimeError: Allocation on device 1 would exceed allowed memory. (out of memory)\nCurrently allocated     : 20.10 GiB\n"
        "Requested               : 64.00 MiB\nDevice limit            : 23.50 GiB\nFree (according to CUDA): 12.50 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB",
        ["cuda-async.oom"],
    ),
    "traceback": (
        'Traceback (most recent call last):\n  File "fit.py", line 9, in <module>\n    loss = net(batch)\n  File "net.py", line 3, in forward\n'
        "    return self.head(h)\nRuntimeError: it broke",
        ["Traceback"],
    ),
    "host_kill": ("RuntimeError: DataLoader worker (pid 881) is killed by signal: Killed.", ["dataloader.killed"]),
    "collectives": (
        "[rank5]:[E ProcessGroupNCCL.cpp:600] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLGATHER, "
        "NumelIn=640, NumelOut=5120, Timeout(ms)=600000) ran for 600014 milliseconds before timing out.",
        ["nccl.timeout"],
    ),
    "launcher": (
        "E1130 02:11:07.249000 511 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 577) of binary: python",
        ["launcher.failed"],
    ),
    "processes": (
        "node-a:4101:5101 [3] NCCL INFO comm 0x5d rank 11 nranks 16 cudaDev 3 busId b0 commId 0x7 - Init COMPLETE",
        ["Process", "World"],
    ),
    "not_memory": ("RuntimeError: CUDA error: device-side assert triggered", ["cuda.assert"]),
    "wrappers": ("WARNING: ran out of memory on GPU #2, skipping batch", ["wrapper.recovered"]),
    "mps_oom": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 8.10 GB, other allocations: 1.20 GB, max allowed: 9.07 GB). Tried to allocate 256.00 MB "
        "on private pool.",
        ["mps.oom"],
    ),
    "xpu_oom": (
        "RuntimeError: XPU out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.56 GiB total capacity; 14.00 GiB already allocated; 14.20 GiB reserved "
        "in total by PyTorch)",
        ["xpu.oom"],
    ),
    "tensorflow_oom": (
        "ResourceExhaustedError: OOM when allocating tensor with shape[8,16,1024,1024] and type float on /device:GPU:0 by allocator GPU_0_bfc",
        ["tf.oom"],
    ),
    "jax_oom": ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", ["jax.oom"]),
    "paddle_oom": (
        "Out of memory error on GPU 0. Cannot allocate 25.002197MB memory on GPU 0, available memory is only 15.187500MB.",
        ["paddle.oom"],
    ),
    "onnxruntime_oom": ("bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 8589934592", ["ort.alloc"]),
    "vllm": ("ValueError: No available memory for the cache blocks. Try increasing it.", ["vllm.no-cache-blocks"]),
    "cuda_programs": ("[TRT] Requested amount of GPU memory (8589934592 bytes) could not be allocated.", ["tensorrt.oom"]),
    "cpu_oom": ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.", ["cpu-allocator.oom"]),
    "nvidia_smi": (
        "|    0   N/A  N/A   2579940      C   .../bin/python3.9               13724MiB |",
        ["DeviceMemory"],
    ),
    "rocm_smi": ("GPU[0]\t\t: VRAM Total Used Memory (B): 10960896", ["DeviceMemory"]),
    "host_memory": ("shm              64M   64M     0 100% /dev/shm", ["HostMemory"]),
    "kernel_oom": ("Out of memory: Killed process 4242 (python3) total-vm:18kB, anon-rss:12kB, file-rss:1kB", ["kernel.oom-kill"]),
    "scheduler_oom": ("slurmstepd: error: Detected 1 oom_kill event in StepId=608.0.", ["slurm.oom-kill"]),
    "memory_lines": (
        "step: 20  loss:  6.11  grad_norm:  1.2  memory: 44.12GiB(46.40%)  tps: 5,120",
        ["MemoryPoint", "Progress"],
    ),
    "deepspeed_memory": ("MA 1.25 GB         Max_MA 3.5 GB         CA 4.5 GB         Max_CA 5 GB ", ["MemoryPoint"]),
    "megatron_memory": (
        "[Rank 1] (after 4 iterations) memory (MB) | allocated: 1323.25 | max allocated: 2702.5 | reserved: 3164.0 | max reserved: 3164.0",
        ["MemoryPoint"],
    ),
    "trainer_memory": ("Max CUDA memory allocated was 45 GB", ["MemoryPoint"]),
    "fairseq_memory": (
        "| rank   0: capabilities =  7.0  ; total memory = 31.75 GB ; name = Tesla V100-SXM2-32GB",
        ["DeviceMemory"],
    ),
    "settings_lines": ("  Instantaneous batch size per device = 16", ["Setting"]),
    "reproduction": (
        'diag-kit-repro start id=0f3a9c21b7de version=1 failure="da4451eede81" host="gpu-17" device="NVIDIA A100-SXM4-40GB" gpu="GPU-41c2" '
        'total_bytes=42294690447 (40,335.36 MiB) small=false change={} assumed=[] left_out=[] settings={"seq_len": 1024}\n'
        'diag-kit-repro micro-step id=0f3a9c21b7de step=1 micro_step=1 shape=[1, 1024] phase="loss" allocated_bytes=4404019200 (4,200.00 MiB) '
        "max_allocated_bytes=4509925376 (4,301.00 MiB) reserved_bytes=4718592000 (4,500.00 MiB)\n"
        'diag-kit-repro verdict id=0f3a9c21b7de verdict="not reproduced" steps=3 max_allocated_bytes=4509925376 (4,301.00 MiB)',
        ["Repetition"],
    ),
}
