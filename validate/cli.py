"""``draftrt validate``: golden cases, parity and bisection of a bundle, trajectories, ranges.

Exit status of all of them: 0 same, 3 different, 1 could not be checked, 2 usage.
"""

from __future__ import annotations

import click

from draftrt.validate.bisect.cli import bisect
from draftrt.validate.parity.cli import parity, ranges
from draftrt.validate.records.cli import golden, matrix, record, record_trajectories, trajectories
from draftrt.validate.reuse.cli import reuse


@click.group()
def validate() -> None:
    """Compare what was exported with the original, and say where they differ.

    Exit status: 0 same, 3 different, 1 could not be checked, 2 usage.
    """


validate.add_command(golden)
validate.add_command(parity)
validate.add_command(trajectories)
validate.add_command(bisect)
validate.add_command(ranges)
validate.add_command(reuse)
validate.add_command(matrix)
validate.add_command(record)
validate.add_command(record_trajectories)
