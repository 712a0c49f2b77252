"""Trajectory reports as text: one line a row, printed as the rows are done."""

from __future__ import annotations

from draftrt.validate.records.trajectories import TrajectoryReport

WIDTH = 32
HEADING = f"row  {'prompt':{WIDTH}}  threshold  tokens  rounds compared  accepted  verdict"


def as_line(report: TrajectoryReport) -> str:
    """Return a row's line; a difference is told behind the verdict."""
    prompt = repr(report.recorded.prompt)
    prompt = prompt if len(prompt) <= WIDTH else prompt[: WIDTH - 3] + "..."
    compared = f"{report.num_compared} of {report.num_rounds}"
    verdict = "same" if report.is_same else f"different: {report.problems[0]}"
    if len(report.problems) > 1:
        verdict += f", and {len(report.problems) - 1} more"
    return (
        f"{report.row:3}  {prompt:{WIDTH}}  {report.recorded.confidence_threshold:<9g}  "
        f"{report.num_tokens:<6}  {compared:15}  {report.num_accepted:<8}  {verdict}"
    )
