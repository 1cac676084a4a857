# SPDX-License-Identifier: Apache-2.0
"""`explore`: the file of a study, its points, its report."""
