# SPDX-License-Identifier: Apache-2.0
"""Puts the examples and the measured data into the wheel, for `pulptrain example`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {"examples": "examples", "notebooks": "docs/notebooks", "measured": "measured"}
"""As `SOURCES` of pulptrain/show/shipped.py: a test compares them."""


class BuildWithShippedFiles(build_py):
    """`build_py`, and the folders of `SHIPPED` below pulptrain/shipped_files."""

    def run(self) -> None:
        """Build; in an editable installation the files are found where they are."""
        super().run()
        if self.editable_mode:
            return
        root = Path(__file__).resolve().parent
        for name, source in SHIPPED.items():
            target = Path(self.build_lib) / "pulptrain" / "shipped_files" / name
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted((root / source).iterdir()):
                if path.is_file():
                    shutil.copyfile(path, target / path.name)


setup(cmdclass={"build_py": BuildWithShippedFiles})
