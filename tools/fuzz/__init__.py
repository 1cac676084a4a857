# SPDX-License-Identifier: Apache-2.0
"""A seeded mutator of everything pulptrain reads: `make fuzz SEED=0 COUNT=20000`."""

import os

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before NumPy and PyTorch are imported: processes are forked
