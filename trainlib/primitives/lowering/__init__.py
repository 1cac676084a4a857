"""What lowerings of several primitives share: kernel calls, pieces of buffers, loops over elements."""
