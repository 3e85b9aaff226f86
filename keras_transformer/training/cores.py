"""How TensorFlow's operations share the cores of the machine."""

import os

import tensorflow as tf


def share_cores(parts: int) -> bool:
    """Gives each of the parts that a batch is computed in its share of the cores.

    By default an operation takes all cores, and the operations of a small model are too short for
    that: their threads wait for each other more than they compute. A step of Transformer-tiny with
    2,048 places took 540 ms on two cores, and 420 ms in two parts of one core each. This holds for
    all that the process does with TensorFlow.

    Args:
        parts: how many there are; of 1, nothing is changed.

    Returns:
        Whether it could be set: not where TensorFlow has begun to compute.
    """
    if parts == 1:
        return False
    try:
        tf.config.threading.set_inter_op_parallelism_threads(parts)
        tf.config.threading.set_intra_op_parallelism_threads(max(1, os.cpu_count() // parts))
    except RuntimeError:
        return False
    return True
