"""The campaigns as the rules see them: resolved once, before any rule is made."""

from snakemake.exceptions import WorkflowError

from campaign.errors import CampaignError
from campaign.workflow import Plan, begin_run

begin_run()

try:
    PLAN = Plan.of(config)
except CampaignError as error:
    raise WorkflowError(str(error)) from None

# A job that waits for a venue says so in its log only; this says it at the terminal.
WHO = "python -m campaign.engine who"
RELEASE = "python -m campaign.engine release" + (" --keep" if PLAN.keep_engine else "")


def check():
    """What a run needs is looked for before its first boot, which may take an hour; a dry run needs nothing."""
    try:
        PLAN.check(
            str(path) for job in workflow.dag.needrun_jobs() for path in job.output
        )
    except CampaignError as error:
        raise WorkflowError(str(error)) from None


# One engine a venue: a limit that stands only in a profile is dropped by any --resources on the command line.
for venue in PLAN.venues:
    workflow.global_resources[venue] = 1


wildcard_constraints:
    campaign=PLAN.pattern("campaign"),
    variant=PLAN.pattern("variant"),
    boot="b[1-9][0-9]*",
    point="[^/]+",
