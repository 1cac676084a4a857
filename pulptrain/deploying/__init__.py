# SPDX-License-Identifier: Apache-2.0
"""`pulptrain deploy`: a run, and its schedule as a C project."""
