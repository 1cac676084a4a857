"""The program of the cluster's master core, emitted op by op."""
