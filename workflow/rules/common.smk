"""The campaigns as the rules see them: resolved once, before any rule is made."""

import os
import sys
import uuid

from snakemake.exceptions import WorkflowError

from campaign.errors import CampaignError
from campaign.process import ProcessId
from campaign.workflow import Plan

# The rules call `python`, which must be the one that runs Snakemake.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
# The lease of a venue belongs to this run; jobs that parse the Snakefile again belong to the same one.
os.environ.setdefault("CAMPAIGN_RUN", uuid.uuid4().hex[:12])
os.environ.setdefault("CAMPAIGN_OWNER", ProcessId.own().json())

try:
    PLAN = Plan.of(config)
except CampaignError as error:
    raise WorkflowError(str(error)) from None

RELEASE = "python -m campaign.engine release" + (" --keep" if PLAN.keep_engine else "")

# One engine a venue: a limit that stands only in a profile is dropped by any --resources on the command line.
for venue in PLAN.venues:
    workflow.global_resources[venue] = 1


wildcard_constraints:
    campaign=PLAN.pattern("campaign"),
    variant=PLAN.pattern("variant"),
    boot="b[1-9][0-9]*",
    point="[^/]+",
