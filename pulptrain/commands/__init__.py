"""The subcommands of `pulptrain`, one file each."""
