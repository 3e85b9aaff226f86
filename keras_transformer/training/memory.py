"""How the C library gives memory to TensorFlow's CPU kernels."""

import ctypes
import platform

# From glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Asks glibc to keep the memory that a step frees for the next step; returns whether it will.

    By default it hands large tensors back to the system as soon as they are freed, and every step
    then waits for the same pages to be mapped and cleared again. On two cores a step of the demo
    took 79 ms with 42 ms of processor time in the kernel, and so 63 ms with 11 ms
    (benchmarks/malloc.py). In return the process stays as large as its largest step.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    settings = {
        M_MMAP_THRESHOLD: 1 << 30,  # tensors up to 1 GiB come from the heap
        M_TRIM_THRESHOLD: (1 << 31) - 1,  # and the heap does not shrink
        M_TOP_PAD: 64 << 20,  # and grows in large pieces
    }
    return all(libc.mallopt(parameter, value) for parameter, value in settings.items())
