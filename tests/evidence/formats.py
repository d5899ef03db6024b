"""Messages in the real grammars, written for these tests, with what must be read of them to the byte; and look-alikes.

``MESSAGES``: (parser, text, kinds of its events in order, figures of the last one). A size is written as printed.
``HEALTHY``: (parser, text) that the parser must leave alone.
"""

MESSAGES: list[tuple[str, str, list[str], dict]] = [
    # --- torch on other devices ---
    (
        "torch_oom",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.97 GiB total capacity; 50.11 GiB already allocated; "
        "50.11 GiB current active; 1.12 GiB free; 52.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory",
        ["npu.oom"],
        {"tried_to_allocate_bytes": "2.00 GiB", "total_bytes": "60.97 GiB", "allocated_bytes": "50.11 GiB", "free_bytes": "1.12 GiB",
         "reserved_bytes": "52.00 GiB", "device": 3},
    ),
    (
        "torch_oom",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 63.98 GiB of which 1.25 GiB is "
        "free. 10.00 GiB allowed; Of the allocated memory 9.00 GiB is allocated by PyTorch, with 96.00 MiB allocated in private pools (e.g., "
        "HIP Graphs), and 612.50 MiB is reserved by PyTorch but unallocated.",
        ["hip.oom"],
        {"allowed_bytes": "10.00 GiB", "private_pools_bytes": "96.00 MiB", "reserved_unallocated_bytes": "612.50 MiB", "device": 1},
    ),
    ("torch_oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU ", ["torch.oom"],
     {"tried_to_allocate_bytes": "2.00 GiB", "total_bytes": None, "device": None}),
    ("torch_oom", "torch.OutOfMemoryError: Allocation on device ", ["torch.oom-bare"], {}),
    ("torch_oom", "CUDA out of memory. Tried to allocate more than 1EB memory.", ["torch.oom"],
     {"requested_at_least_bytes": 1 << 60, "tried_to_allocate_bytes": None}),
    (
        "xpu_oom",
        "RuntimeError: XPU out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 15.91 GiB. Of the allocated memory 13.00 GiB "
        "is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
        ["xpu.oom"],
        {"total_bytes": "15.91 GiB", "allocated_bytes": "13.00 GiB", "reserved_unallocated_bytes": "512.00 MiB", "free_bytes": None, "device": 1},
    ),
    (
        "xpu_oom",
        "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate 6.85 GiB (GPU  0; 15.56 GiB total "
        "capacity; 5.67 GiB already allocated; 5.91 GiB reserved in total by PyTorch)",
        ["xpu.block-limit"],
        {"tried_to_allocate_bytes": "6.85 GiB", "block_limit_bytes": "4 GiB", "reserved_bytes": "5.91 GiB", "device": 0},
    ),
    ("xpu_oom", "RuntimeError: Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", ["xpu.driver-oom"], {}),
    (
        "mps_oom",
        "RuntimeError: MPS backend out of memory (MPS allocated: 15.72 GiB, other allocations: 2.41 MiB, max allowed: 18.13 GiB).\n"
        "Tried to allocate 5.81 GiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit",
        ["mps.oom"],
        {"allocated_bytes": "15.72 GiB", "other_allocations_bytes": "2.41 MiB", "allowed_bytes": "18.13 GiB", "tried_to_allocate_bytes": "5.81 GiB"},
    ),
    ("mps_oom", "RuntimeError: Invalid buffer size: 58.00 GB\n[1] done", ["mps.oom"], {"tried_to_allocate_bytes": "58 GiB", "device": "mps"}),
    (
        "mps_oom",
        "RuntimeError: [metal::malloc] Attempting to allocate 28991029248 bytes which is greater than the maximum allowed buffer size of 14000000000 bytes.",
        ["mps.oom"],
        {"tried_to_allocate_bytes": 28991029248, "buffer_limit_bytes": 14000000000},
    ),
    # --- CUDA without torch's numbers ---
    ("cuda_errors", "RuntimeError: HIP error: out of memory", ["cuda.error-oom"], {}),
    ("cuda_errors", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", ["cublas.alloc-failed"], {}),
    ("cuda_errors", "THCudaCheck FAIL file=/tmp/a/THCStorage.cu line=58 error=2 : out of memory", ["thc.oom"], {}),
    (
        "cuda_programs",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 12,884,901,888 bytes, limit set to: "
        "17,179,869,184 bytes).",
        ["cupy.oom"],
        {"tried_to_allocate_bytes": 8589934592, "allocated_bytes": 12884901888, "allowed_bytes": 17179869184},
    ),
    (
        "cuda_programs",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 1: cudaMalloc failed: out of memory",
        ["ggml.oom"],
        {"tried_to_allocate_bytes": "4 GiB", "device": 1},
    ),
    ("cuda_programs", "[TRT] [E] Requested amount of GPU memory (8589934592 bytes) could not be allocated.", ["tensorrt.oom"],
     {"tried_to_allocate_bytes": 8589934592}),
    # --- TensorFlow ---
    (
        "tensorflow_oom",
        "2023-01-01 10:00:01.1: W tensorflow/core/common_runtime/bfc_allocator.cc:457] Allocator (GPU_0_bfc) ran out of memory trying to allocate 512.00MiB "
        "(rounded to 536870912)requested by op gradients/x\nStats: \nLimit:                 10907320320\nInUse:                 10845020160\n"
        "MaxInUse:              10905020160\nNumAllocs:                    5123\nMaxAllocSize:           2831155200\n\n"
        "W tensorflow/core/framework/op_kernel.cc:1763] OP_REQUIRES failed at transpose_op.cc:184 : Resource exhausted: OOM when allocating tensor with "
        "shape[8,16,1024,1024] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc\n"
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: 2 root error(s) found.\n"
        "  (0) Resource exhausted:  OOM when allocating tensor with shape[8,16,1024,1024] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by "
        "allocator GPU_1_bfc\n"
        "  (1) Resource exhausted:  OOM when allocating tensor with shape[8,16,1024,1024] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by "
        "allocator GPU_1_bfc",
        ["tf.bfc-refused", "tf.oom"],
        {"tensor_shape": [8, 16, 1024, 1024], "tensor_dtype": "float32", "tensor_size_bytes": 1 << 29, "allocator_limit_bytes": 10907320320,
         "allocated_bytes": 10845020160, "max_allocated_bytes": 10905020160, "largest_allocation_bytes": 2831155200, "device": 1},
    ),
    ("tensorflow_oom", "ResourceExhaustedError: OOM when allocating tensor of shape [64,512] and type half", ["tf.oom"],
     {"tensor_shape": [64, 512], "tensor_size_bytes": 65536, "tensor_dtype": "float16"}),
    ("tensorflow_oom", "ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[9216,4096]", ["tf.oom"],
     {"tensor_shape": [9216, 4096], "tensor_size_bytes": None}),
    (
        "tensorflow_oom",
        "ResourceExhaustedError: OOM when allocating tensor with shape[64,512] and type double on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
        ["tf.host-oom"],
        {"tensor_size_bytes": 262144, "device": None},
    ),
    ("tensorflow_oom", "E cuda_driver.cc:806] failed to allocate 7.35G (7889485824 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY", ["tf.device-refused"],
     {"tried_to_allocate_bytes": 7889485824}),
    (
        "tensorflow_oom",
        "E cuda_driver.cc:893] failed to alloc 4294967296 bytes on host: CUDA_ERROR_OUT_OF_MEMORY\n"
        "W gpu_host_allocator.h:40] could not allocate pinned host memory of size: 4294967296",
        ["tf.pinned-host", "tf.pinned-host"],
        {"tried_to_allocate_bytes": "4 GiB"},
    ),
    ("tensorflow_oom", "W Allocation of 1258291200 exceeds 10% of free system memory.", ["tf.host-advisory"], {"tried_to_allocate_bytes": 1258291200}),
    # --- JAX ---
    (
        "jax_oom",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 55715364344 bytes.\nBufferAssignment OOM Debugging.\n"
        "BufferAssignment stats:\n             parameter allocation:  388.25MiB\n              constant allocation:         4B\n"
        "        maybe_live_out allocation:   20.50GiB\n     preallocated temp allocation:   31.25GiB\n  preallocated temp fragmentation:      304B (0.00%)\n"
        "                 total allocation:   51.75GiB\nPeak buffers:\n\tBuffer 1:\n\t\tSize: 10.00GiB\n\t\tXLA Label: fusion\n\t\tShape: f32[8,4096,81920]\n"
        "\t\t==========================\n\nXlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 55715364344 bytes.",
        ["jax.oom"],
        {"tried_to_allocate_bytes": 55715364344, "parameters_allocation_bytes": "388.25 MiB", "output_allocation_bytes": "20.5 GiB",
         "temporary_allocation_bytes": "31.25 GiB", "needed_bytes": "51.75 GiB", "tensor_shape": [8, 4096, 81920], "tensor_size_bytes": "10 GiB", "device": None},
    ),
    (
        "jax_oom",
        "RuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 31.06M. That was not possible. There are 58.64M free. Due to fragmentation, the largest "
        "contiguous region of free memory is 30.56M.; (0x0x0_HBM0)",
        ["jax.oom"],
        {"tried_to_allocate_bytes": "31.06 MiB", "free_bytes": "58.64 MiB", "largest_free_block_bytes": "30.56 MiB", "device": "tpu"},
    ),
    (
        "jax_oom",
        "RuntimeError: RESOURCE_EXHAUSTED: Error loading program: Attempting to reserve 12.04G at the bottom of memory. That was not possible. There are "
        "11.04G free, 0B reserved, and 11.04G reservable.",
        ["jax.oom"],
        {"tried_to_allocate_bytes": "12.04 GiB", "free_bytes": "11.04 GiB", "largest_free_block_bytes": "11.04 GiB"},
    ),
    (
        "tensorflow_oom",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[40,16,50000]\n"
        "\t [[Node: decoder/stack/TensorArrayGatherV3 = TensorArrayGatherV3[dtype=DT_HALF, element_shape=[?,50000]](a, b)]]",
        ["tf.oom"],
        {"tensor_shape": [40, 16, 50000], "tensor_dtype": "float16", "tensor_size_bytes": 64000000},
    ),
    ("host_kill", "ERROR: Unexpected BUS error encountered in DataLoader worker. This might be caused by insufficient shared memory (shm)", ["dataloader.bus-error"], {}),
    (
        "host_kill",
        "[node7:411 :0:977] Caught signal 7 (Bus error: nonexistent physical address)\n==== backtrace (tid:    977) ====\n"
        " 0 0x0000000000043090 killpg()  ???:0\n 1 0x000000000008170d ncclCommInitRank()  ???:0",
        ["nccl.bus-error"],
        {"pid": 411, "host": "node7", "exitcode": -7},
    ),
    (  # a crash elsewhere, with NCCL's chatter of another process in between
        "host_kill",
        "[node7:411 :0:977] Caught signal 7 (Bus error: nonexistent physical address)\nnode7:412:980 [1] NCCL INFO Connected all trees\n"
        " 0 0x0000000000043090 killpg()  ???:0\n 1 0x000000000008170d sqlite3_step()  ???:0",
        ["exit.sigbus"],
        {"pid": 411},
    ),
    (
        "collectives",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, invalid argument (run with NCCL_DEBUG=WARN for details)\n"
        "ncclInvalidArgument: Invalid value for an argument.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
        ["nccl.misuse"],
        {"message": "ncclInvalidArgument: Invalid value for an argument. Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000"},
    ),
    ("collectives", "[E ProcessGroupNCCL.cpp:456] [Rank 6] Watchdog caught collective op", ["nccl.timeout"], {"group_rank": 6}),  # cut
    ("settings_lines", "INFO:tensorflow:Creating vocabulary lookup table of size 50000", ["Setting"], {"name": "vocab", "value": 50000}),
    ("settings_lines", "| [de] dictionary: 32768 types", ["Setting"], {"name": "vocab", "value": 32768}),
    ("settings_lines", "vocab size: 32,000 (sentencepiece)", ["Setting"], {"name": "vocab", "value": 32000}),
    (
        "jax_oom",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 23.43G of 15.48G hbm. Exceeded hbm "
        "capacity by 7.95G.\n\nTotal hbm usage >= 23.95G:\n    reserved        530.00M \n    program          23.43G \n    arguments        0B ",
        ["jax.oom"],
        {"needed_bytes": "23.43 GiB", "total_bytes": "15.48 GiB", "exceeded_by_bytes": "7.95 GiB", "program_bytes": "23.43 GiB", "arguments_bytes": 0},
    ),
    ("jax_oom", "RuntimeError: Resource exhausted: Out of memory trying to allocate 8589934592 bytes", ["jax.oom"], {"tried_to_allocate_bytes": 8589934592}),
    ("jax_oom", "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.50GiB (2684354560B) on device ordinal 3", ["jax.oom"],
     {"tried_to_allocate_bytes": 2684354560, "device": 3}),
    ("jax_oom", "ValueError: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.", ["jax.oom"], {"tried_to_allocate_bytes": 17179869184}),
    ("jax_oom", "XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 32.50M of 16.00M vmem. Exceeded vmem capacity by 16.50M.",
     ["xla.kernel-memory"], {"kernel_needed_bytes": "32.5 MiB", "kernel_limit_bytes": "16 MiB", "total_bytes": None}),
    # --- Paddle, ONNX Runtime, vLLM ---
    (
        "paddle_oom",
        "ResourceExhaustedError: \n\nOut of memory error on GPU 2. Cannot allocate 25.002197MB memory on GPU 2, 7.782776GB memory has been allocated and\n"
        "available memory is only 15.187500MB.\n\nPlease check whether there is any other process using GPU 2.",
        ["paddle.oom"],
        {"tried_to_allocate_bytes": 26216704, "allocated_bytes": "7.782776 GiB", "free_bytes": 15925248, "device": 2},
    ),
    ("paddle_oom", "Out of memory error on GPU 0. Cannot allocate 1.500000GB memory on GPU 0, available memory is only 512.000000KB.", ["paddle.oom"],
     {"tried_to_allocate_bytes": "1.5 GiB", "free_bytes": "512 KiB", "allocated_bytes": None}),
    (
        "onnxruntime_oom",
        "[E:onnxruntime:, sequential_executor.cc:494 ExecuteKernel] Non-zero status code returned while running Conv node. Name:'/up/conv' Status Message: "
        "/a/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer of size 8589934592",
        ["ort.alloc"],
        {"tried_to_allocate_bytes": 8589934592, "node": "Conv /up/conv"},
    ),
    ("onnxruntime_oom", "bfc_arena.cc:331 Available memory of 1024 is smaller than requested bytes of 4096", ["ort.alloc"],
     {"free_bytes": 1024, "tried_to_allocate_bytes": 4096}),
    ("onnxruntime_oom", "onnxruntime::CudaCall CUDA failure 2: out of memory ; GPU=1 ; hostname=a ; expr=cudaMalloc((void**)&p, size);", ["ort.cuda-oom"],
     {"device": 1}),
    (
        "vllm",
        "INFO model_runner.py:1072] Loading model weights took 14.99 GB\nthe current vLLM instance can use total_gpu_memory (23.65GiB) x "
        "gpu_memory_utilization (0.90) = 21.28GiB\nAvailable KV cache memory: -1.25 GiB\n# GPU blocks: 0, # CPU blocks: 21845\n"
        "    raise ValueError(\"No available memory for the cache blocks. \"\n"
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        ["vllm.no-cache-blocks"],
        {"weights_bytes": "14.99 GiB", "total_bytes": "23.65 GiB", "budget_bytes": "21.28 GiB", "cache_bytes": -1342177280, "gpu_blocks": 0},
    ),
    (
        "vllm",
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available "
        "KV cache memory (7.41 GiB). Based on the available memory, the estimated maximum model length is 60688.",
        ["vllm.cache-too-small"],
        {"needed_bytes": "16 GiB", "cache_bytes": "7.41 GiB", "max_seq_len": 131072},
    ),
    (
        "vllm",
        "ValueError: Free memory on device cuda:1 (7.41/23.65 GiB) on startup is less than desired GPU memory utilization (0.9, 21.28 GiB).",
        ["vllm.card-taken"],
        {"free_bytes": "7.41 GiB", "total_bytes": "23.65 GiB", "budget_bytes": "21.28 GiB", "device": 1},
    ),
    # --- wrappers ---
    ("wrappers", "Batch size 64 failed, trying batch size 32", ["wrapper.recovered"], {}),
    ("wrappers", "UserWarning: Sequential pipeline ran out of memory. Please consider choosing a smaller module", ["wrapper.gave-up"], {}),
    # --- the host ---
    (
        "cpu_oom",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12",
        ["cpu-allocator.oom"],
        {"tried_to_allocate_bytes": 8589934592},
    ),
    ("cpu_oom", "data. DefaultCPUAllocator: not enough memory: you tried to allocate 1207959552 bytes. Buy new RAM!", ["cpu-allocator.oom"],
     {"tried_to_allocate_bytes": 1207959552}),
    ("cpu_oom", "$ Torch: not enough memory: you tried to allocate 8GB. Buy new RAM! at THGeneral.cpp:201", ["cpu-allocator.oom"],
     {"tried_to_allocate_bytes": "8 GiB"}),
    (
        "cpu_oom",
        "numpy.core._exceptions.MemoryError: Unable to allocate 113. GiB for an array with shape (1000, 1000) and data type float64",
        ["numpy.oom"],
        {"tried_to_allocate_bytes": "113 GiB", "tensor_shape": [1000, 1000], "tensor_dtype": "float64", "tensor_size_bytes": 8000000},
    ),
    ("cpu_oom", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.5 PiB for an array with shape (12,) and data type <U10", ["numpy.oom"],
     {"tried_to_allocate_bytes": 5 << 49, "tensor_dtype": "<U10"}),
    ("cpu_oom", "MemoryError: Unable to allocate array with shape (10000, 10000) and data type float64", ["numpy.oom"],
     {"tried_to_allocate_bytes": None, "tensor_size_bytes": 800000000}),
    ("cpu_oom", "OSError: [Errno 12] Cannot allocate memory", ["os.no-memory"], {}),
    ("cpu_oom", "RuntimeError: unable to write to file </torch_12_34>", ["shm.exhausted"], {}),
    (
        "kernel_oom",
        "[17.2] python3 invoked oom-killer: gfp_mask=0x100, order=0, oom_score_adj=0\n[17.2] memory: usage 8388608kB, limit 8388608kB, failcnt 1234\n"
        "[17.2] 33554432 pages RAM\n[17.2] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,oom_memcg=/docker/1,task=python,pid=629,uid=0\n"
        "[17.2] Memory cgroup out of memory: Killed process 629 (python) total-vm:14119556kB, anon-rss:6538204kB, file-rss:80652kB, shmem-rss:16kB, UID:0",
        ["cgroup.oom-kill"],
        {"memory_limit_bytes": "8 GiB", "memory_used_bytes": "8 GiB", "host_total_bytes": "128 GiB", "killed_virtual_bytes": 14119556 << 10,
         "killed_rss_bytes": 6538204 << 10, "killed_file_bytes": 80652 << 10, "killed_shared_bytes": 16 << 10, "pid": 629},
    ),
    (
        "kernel_oom",
        "Out of memory: Kill process 10192 (python) score 945 or sacrifice child\nKilled process 10192, UID 1801, (python) total-vm:7804984kB, "
        "anon-rss:2460052kB, file-rss:284kB",
        ["kernel.oom-kill"],
        {"killed_rss_bytes": 2460052 << 10, "pid": 10192},
    ),
    ("kernel_oom", "low 0\nhigh 0\nmax 1234\noom 2\noom_kill 1\noom_group_kill 0", ["cgroup.oom-count"], {"oom_kills": 1}),
    (
        "scheduler_oom",
        "       JobID    JobName     MaxRSS     ReqMem      State ExitCode\n------------ ---------- ---------- ---------- ---------- --------\n"
        "608.batch         batch  63432100K        64Gn OUT_OF_ME+    0:125",
        ["slurm.oom-kill"],
        {"memory_used_bytes": 63432100 << 10, "memory_limit_bytes": "64 GiB"},
    ),
    ("scheduler_oom", "JobID|State|MaxRSS|ReqMem\n608.batch|OUT_OF_MEMORY|63432100K|64G", ["slurm.oom-kill"],
     {"memory_used_bytes": 63432100 << 10, "memory_limit_bytes": "64 GiB"}),
    (
        "scheduler_oom",
        "Job ID: 12345\nState: OUT_OF_MEMORY (exit code 0)\nCores: 4\nMemory Utilized: 63.25 GB\nMemory Efficiency: 98.75% of 64.00 GB",
        ["slurm.oom-kill", "HostMemory"],
        {"of": "job", "total_bytes": "64 GiB", "used_bytes": "63.25 GiB"},
    ),
    (
        "scheduler_oom",
        "    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n    Limits:\n      memory:          64Gi\n"
        "      nvidia.com/gpu:  1\n    Requests:\n      memory: 32Gi",
        ["container.oom-kill"],
        {"memory_limit_bytes": "64 GiB", "exitcode": -9},
    ),
    ("scheduler_oom", '            "OOMKilled": true,\n            "ExitCode": 137,\n            "Memory": 8589934592,', ["container.oom-kill"],
     {"memory_limit_bytes": "8 GiB", "exitcode": -9}),
    ("scheduler_oom", "2024-01-01T00:00:00.000000000Z container oom 4f1c (image=a, name=b)", ["container.oom-kill"], {}),
    ("scheduler_oom", "The node was low on resource: memory. Container train was using 61Gi, request is 32Gi", ["k8s.evicted"], {"memory_used_bytes": "61 GiB"}),
    ("host_kill", "/var/spool/job001/slurm_script: line 28:  8156 Killed                  python3 main.py", ["exit.sigkill"], {"exitcode": -9}),
    # --- tables of tools ---
    (
        "nvidia_smi",
        "| NVIDIA-SMI 470.57.02    Driver Version: 470.57.02    CUDA Version: 11.4     |\n"
        "|   1  NVIDIA A100-SXM...  Off  | 00000000:0F:00.0 Off |                    0 |\n"
        "| N/A   34C    P0    62W / 400W |  38905MiB / 40536MiB |      0%      Default |",
        ["DeviceMemory"],
        {"device": 1, "used_bytes": 38905 << 20, "total_bytes": 40536 << 20, "pid": None},
    ),
    ("nvidia_smi", "|    3   N/A  N/A   2579940      C   .../bin/python3.9               13724MiB |", ["DeviceMemory"],
     {"device": 3, "pid": 2579940, "used_bytes": 13724 << 20, "process": ".../bin/python3.9"}),
    ("nvidia_smi", "|    0      1234    C+G   python -m train                              414MiB |", ["DeviceMemory"],
     {"device": 0, "pid": 1234, "used_bytes": 414 << 20, "process": "python -m train"}),
    ("nvidia_smi", "index, memory.used [MiB], memory.total [MiB]\n0, 38905 MiB, 40536 MiB\n1, 3 MiB, 40536 MiB\ndone", ["DeviceMemory"] * 2,
     {"device": 1, "used_bytes": 3 << 20, "total_bytes": 40536 << 20}),
    ("nvidia_smi", "pid, used_gpu_memory [MiB]\n2579940, 13724 MiB", ["DeviceMemory"], {"pid": 2579940, "used_bytes": 13724 << 20, "device": None}),
    ("nvidia_smi", "[2] Tesla V100-SXM2-32GB | 34'C,   0 % | 16000 / 32510 MB | ada:python/1234(15990M)", ["DeviceMemory"] * 2,
     {"device": 2, "pid": 1234, "used_bytes": 15990 << 20, "process": "ada:python"}),
    ("rocm_smi", "GPU[1]\t\t: VRAM Total Memory (B): 68702699520\nGPU[1]\t\t: VRAM Total Used Memory (B): 10960896", ["DeviceMemory"],
     {"device": 1, "used_bytes": 10960896, "total_bytes": 68702699520}),
    ("rocm_smi", "PID\tPROCESS NAME\tGPU(s)\tVRAM USED\tSDMA USED\tCU OCCUPANCY\n12345\tpython3\t1\t17179869184\t0\t0", ["DeviceMemory"],
     {"pid": 12345, "used_bytes": "16 GiB", "device": None}),
    ("host_memory", "$ free -g\n              total        used        free      shared  buff/cache   available\n"
     "Mem:            125          41           2           1          82          80", ["HostMemory"],
     {"of": "host", "total_bytes": "125 GiB", "used_bytes": "41 GiB", "available_bytes": "80 GiB"}),
    ("host_memory", "               total        used        free      shared  buff/cache   available\n"
     "Mem:           125Gi        41Gi       2.0Gi       1.0Gi        82Gi        80Gi\nSwap:          8.0Gi          0B       8.0Gi", ["HostMemory"] * 2,
     {"of": "swap", "total_bytes": "8 GiB", "used_bytes": 0}),
    ("host_memory", "             total       used       free     shared    buffers     cached\nMem:      65849344   64512000    1337344          0        300      12000",
     ["HostMemory"], {"total_bytes": 65849344 << 10, "used_bytes": 64512000 << 10, "available_bytes": None}),
    ("host_memory", "             total       used       free\nMem:         64306      63000       1306", ["HostMemory"], {"total_bytes": 64306 << 20}),
    ("host_memory", "MiB Mem : 128651.0 total,   1234.5 free,  41000.5 used,  86416.3 buff/cache", ["HostMemory"],
     {"total_bytes": 128651 << 20, "used_bytes": round(41000.5 * 2**20)}),
    ("host_memory", "Filesystem      Size  Used Avail Use% Mounted on\nshm              64M   60M    4M  94% /dev/shm", ["HostMemory"],
     {"of": "shm", "total_bytes": "64 MiB", "used_bytes": "60 MiB", "available_bytes": "4 MiB"}),
    ("host_memory", "svmem(total=137438953472, available=1024, percent=31.2, used=2048, free=3)", ["HostMemory"],
     {"total_bytes": 137438953472, "available_bytes": 1024, "used_bytes": 2048}),
    # --- not memory ---
    ("not_memory", "triton.runtime.autotuner.OutOfResources: out of resource: shared memory, Required: 663808, Hardware limit: 101376. Reducing block sizes",
     ["triton.out-of-resources"], {"required_smem_bytes": 663808, "limit_smem_bytes": 101376}),
    ("not_memory", "ptxas error   : Entry function 'k' uses too much shared data (0x10000 bytes, 0xc000 max)", ["cuda.kernel-resources"], {}),
    ("not_memory", "Loss is nan, stopping training", ["nan-loss"], {}),
    ("not_memory", "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", ["nan-loss"], {}),
    ("not_memory", "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", ["nan-loss"], {}),
    ("not_memory", "./run.sh: line 3:  4411 Segmentation fault (core dumped) python train.py", ["crash.segfault"], {}),
    # --- memory by step ---
    (
        "deepspeed_memory",
        "[2023-05-24 10:02:10,934] [INFO] [utils.py:829:see_memory_usage] After creating fp16 partitions\n[2023-05-24 10:02:10,934] [INFO] [utils.py:834:"
        "see_memory_usage] MA 1.25 GB         Max_MA 3.5 GB         CA 4.5 GB         Max_CA 5 GB \n[2023-05-24 10:02:10,935] [INFO] [utils.py:839:see_memory_"
        "usage] CPU Virtual Memory:  used = 41.5 GB, percent = 8.2%",
        ["MemoryPoint"] * 5,
        {"metric": "host_used", "value_bytes": "41.5 GiB", "label": "After creating fp16 partitions", "step": None},
    ),
    ("deepspeed_memory", "[INFO] [timer.py:199:stop] epoch=0/micro_step=200/global_step=100, RunningAvgSamplesPerSec=1.2, MemAllocated=1.25GB, MaxMemAllocated=3.5GB",
     ["MemoryPoint"] * 2, {"metric": "peak_allocated", "value_bytes": "3.5 GiB", "step": 100, "micro_step": None}),
    ("deepspeed_memory", "[INFO] [timer.py:157:stop] 0/200, RunningAvgSamplesPerSec=1.2, MemAllocated=1.25GB, MaxMemAllocated=3.5GB",
     ["MemoryPoint"] * 2, {"step": 200}),
    ("deepspeed_memory", "[WARNING] [stage3.py:1850:step] 3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure",
     ["deepspeed.flushes"], {"cache_flushes": 3}),
    (
        "megatron_memory",
        "[Rank 5] (after 4 iterations) memory (MB) | allocated: 1323.25 | max allocated: 2702.5 | reserved: 3164.0 | max reserved: 3164.0 | total device memory "
        "used: 4410.5",
        ["MemoryPoint"] * 5,
        {"rank": 5, "metric": "used", "value_bytes": round(4410.5 * 2**20), "step": 4},
    ),
    ("megatron_memory", "[Rank 5] (after save_checkpoint for iteration 500) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | max reserved: 4.0",
     ["MemoryPoint"] * 4, {"metric": "peak_reserved", "value_bytes": 4 << 20, "step": 500}),
    ("megatron_memory", "# --seq-length 8192\n[Rank 5] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | max reserved: 4.0",
     ["MemoryPoint"] * 4, {"seq_len": 8192, "step": 2}),
    ("megatron_memory", "Theoretical memory footprints: weight and optimizer=17592.00 MB, activation=4096.00 MB, total=21688.00 MB",
     ["Setting"] * 3, {"name": "theoretical_total_bytes", "value": 21688 << 20}),
    ("megatron_memory", " > number of parameters on (tensor, pipeline) model parallel rank (0, 1): 1732608000", ["Setting"], {"value": 1732608000}),
    ("trainer_memory", "  train_mem_gpu_peaked_delta =     1234MB", ["MemoryPoint"],
     {"metric": "peak_allocated", "value_bytes": 1234 << 20, "relative": True, "label": "train"}),
    ("trainer_memory", "accelerator.process_index=0 GPU Total Peak Memory consumed during the loading (max): 21951", ["MemoryPoint"],
     {"metric": "peak_allocated", "value_bytes": 21951 << 20, "relative": False}),
    ("trainer_memory", "accelerator.process_index=0 CPU Memory before entering the loading : 886", ["MemoryPoint"],
     {"metric": "host_used", "value_bytes": 886 << 20}),
    ("trainer_memory", "Max CUDA memory reserved was 51 GB", ["MemoryPoint"], {"metric": "peak_reserved", "value_bytes": "51 GiB"}),
    ("trainer_memory", "reserved memory is 16.5 and allocated memory is 3.25", ["MemoryPoint"] * 2, {"metric": "allocated", "value_bytes": "3.25 GiB"}),
    ("trainer_memory", "CUDA memory usage for model: 12.25GiB(13.0%)", ["MemoryPoint"], {"metric": "allocated", "value_bytes": "12.25 GiB"}),
    ("trainer_memory", "1 CUDA OOM errors thrown.", ["torch.retries"], {"num_ooms": 1, "role": "context"}),
    ("trainer_memory", "Memory usage (cuda): alloc cur 1.5GB alloc peak 15.25GB reserved cur 17.5GB reserved peak 17.5GB", ["MemoryPoint"] * 4,
     {"metric": "peak_reserved", "value_bytes": "17.5 GiB"}),
    ("trainer_memory", "MEMORY: total (main 4411, 2024-05-01, 12 procs): pss=3.75GB uss=3.3GB", ["MemoryPoint"], {"metric": "host_used", "value_bytes": "3.75 GiB"}),
    ("trainer_memory", "[INFO] [axolotl.utils.bench.log_gpu_memory_usage:77] GPU memory usage after model load: 7.5GB (+0.294GB cache, +0.5GB misc)", ["MemoryPoint"],
     {"metric": "allocated", "value_bytes": "7.5 GiB", "label": "after model load"}),
    (
        "fairseq_memory",
        "| rank   0: capabilities =  7.0  ; total memory = 31.75 GB ; name = Tesla V100-SXM2-32GB\nepoch 001:     10 / 2031 loss=13.2, num_updates=10, oom=0, "
        "gb_free=12.25, wall=46",
        ["DeviceMemory", "MemoryPoint"],
        {"metric": "peak_allocated", "value_bytes": "19.5 GiB", "step": 10},
    ),
    ("memory_lines", "[07/28 10:01:02 d2.utils.events]:  eta: 1:01:02  iter: 19  total_loss: 2.3  time: 0.4  lr: 0.0002  max_mem: 24911M", ["Progress", "MemoryPoint"],
     {"metric": "peak_allocated", "value_bytes": 24911 << 20, "step": 19}),
    ("memory_lines", "2020-01-01 10:00:00,000 - mmdet - INFO - Epoch [1][150/6300]  lr: 0.02, eta: 1 day, time: 0.5, memory: 4021, loss: 1.2", ["Progress", "MemoryPoint"],
     {"metric": "peak_allocated", "value_bytes": 4021 << 20, "step": 150}),
    ("memory_lines", "Epoch: [0]  [ 10/100] eta: 0:00:02 loss: 0.4 time: 0.1 data: 0.01 max mem: 4021", ["Progress", "MemoryPoint"], {"value_bytes": 4021 << 20}),
    ("memory_lines", "[3/1000] Forward GPU memory usage: 8367.5 MB, CPU memory usage: 44096.5 MB", ["Progress", "MemoryPoint", "MemoryPoint"],
     {"metric": "allocated", "value_bytes": round(8367.5 * 2**20), "step": 3}),
    ("memory_lines", "ep 1 train, step 95, ctc_4 1.2, num_seqs 9, max_size:time 244905, mem_usage:cuda:3 8.75GB, 0.797 sec/step", ["Progress", "MemoryPoint"],
     {"metric": "used", "value_bytes": "8.75 GiB", "step": 95, "seq_len": 244905, "series": "cuda:3"}),
    ("memory_lines", "step:5 - actor/loss:0.1 - perf/max_memory_allocated_gb:12.5 - perf/max_memory_reserved_gb:20.25", ["Progress", "MemoryPoint", "MemoryPoint"],
     {"metric": "peak_reserved", "value_bytes": "20.25 GiB", "step": 5}),
    ("memory_lines", "Step 7 | loss:2.1 lr:1e-5 peak_memory_active:12.3 peak_memory_alloc:12.25 peak_memory_reserved:14.5", ["Progress", "MemoryPoint", "MemoryPoint"],
     {"metric": "peak_reserved", "value_bytes": "14.5 GiB", "step": 7}),
    ("memory_lines", "      1/100      3.25G      1.234      2.345      1.111         12        640:  47%|####7     | 120/256 [00:05<00:03, 2.7it/s]",
     ["Progress", "MemoryPoint"], {"metric": "reserved", "value_bytes": "3.25 GiB", "step": 120}),
    ("memory_lines", " iteration        7/  500000 | consumed samples:          128 | elapsed time per iteration (ms): 1234.5 | lm loss: 1.0E+01 |", ["Progress"],
     {"step": 7, "total": 500000}),
]  # fmt: skip

HEALTHY: list[tuple[str, str]] = [
    ("torch_oom", "CUDA out of memory errors are retried by this script"),
    ("jax_oom", "grpc status = StatusCode.RESOURCE_EXHAUSTED details = \"Received message larger than max (10 vs. 4)\""),
    ("jax_oom", "ResourceExhaustedError: RESOURCE_EXHAUSTED: Quota exceeded for aiplatform.googleapis.com"),
    ("paddle_oom", "Out of memory error handling is on"),
    ("onnxruntime_oom", "requested a smaller arena"),
    ("vllm", '    raise ValueError("No available memory for the cache blocks. "'),
    ("vllm", "INFO: # GPU blocks: 2048, # CPU blocks: 512"),
    ("cpu_oom", "OutOfMemoryError: something"),
    ("cpu_oom", "MemoryError: std::bad_alloc: cudaErrorMemoryAllocation: out of memory"),
    ("kernel_oom", "Out of memory: Killed process 99 (mysqld) total-vm:1000kB, anon-rss:10kB, file-rss:0kB"),
    ("kernel_oom", "low 0\nhigh 0\nmax 1234\noom 0\noom_kill 0"),
    ("kernel_oom", "counter oom_kill 3"),
    ("scheduler_oom", '        "OOMKilled": false,\n        "ExitCode": 1'),
    ("scheduler_oom", "Raise the request if the pod is OOMKilled"),
    ("scheduler_oom", "srun: error: node1: task 3: Exited with exit code 1"),
    ("host_kill", "Killed 3 stale workers of the previous run"),
    ("wrappers", "trying batch size 32 first"),
    ("xpu_oom", "using XPU: memory is fine"),
    ("cuda_errors", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    ("not_memory", "Token indices sequence length is longer than the specified maximum sequence length for this model (1200 > 512)"),
    ("not_memory", "step 3 | loss scale: 65536 | memory: 4021 | number of nan iterations: 0"),
    ("not_memory", "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 10010)."),
    ("not_memory", "WARNING: training without shared memory resources may be slow"),
    ("memory_lines", "  Gradient Accumulation steps = 4"),
    ("memory_lines", "  Total optimization steps = 4,675"),
    ("fairseq_memory", "epoch 001: 10 / 2031 loss=13.2, oom=0, gb_free=12.2"),
    ("trainer_memory", "Memory consumed by nobody knows whom"),
]  # fmt: skip
