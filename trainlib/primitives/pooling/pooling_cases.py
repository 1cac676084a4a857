# SPDX-License-Identifier: Apache-2.0
"""Random small pooling layers for the tests; hypothesis is imported where it is used."""

from __future__ import annotations

from typing import Any

from trainlib.primitives.definition import Example


def pooling_examples(*, average: bool) -> Any:
    """A hypothesis strategy of examples with kernel, stride and padding of their own in both directions."""
    from hypothesis import strategies as st

    @st.composite
    def examples(draw: Any) -> Example:
        kernel = [draw(st.integers(1, 4)) for _ in range(2)]
        padding = [draw(st.integers(0, size // 2)) for size in kernel for _ in range(2)]
        sizes = [
            draw(st.integers(max(1, size - sum(padding[2 * axis :][:2])), 9))
            for axis, size in enumerate(kernel)
        ]
        options: dict[str, Any] = {
            "kernel": kernel,
            "stride": [draw(st.integers(1, 4)) for _ in range(2)],
            "padding": padding,
        }
        if average:
            options["count_include_pad"] = draw(st.booleans())
        elif draw(st.booleans()):
            stride = options["stride"][0]
            options |= {"padding": 0, "stride": stride, "variant": "as-published"}
            sizes = [max(size, side) for size, side in zip(sizes, kernel, strict=True)]
        return Example(options, ((draw(st.integers(1, 3)), *sizes),))

    return examples()
