"""Reproducible LLM-serving performance campaigns: each writeup is a build target of its config matrix.

snakemake                       every cell and report of the campaigns in config/config.yaml
snakemake reports/NAME.md       one campaign's writeup, with the cells that it needs
snakemake --forcerun CELL       one cell again, with the boot that it needs
"""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/engine.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/render.smk"


rule all:
    """Every record of every campaign, and its report."""
    default_target: True
    input:
        PLAN.records,
        PLAN.reports,


onstart:
    shell(WHO)
    check()


onsuccess:
    shell(RELEASE)


onerror:
    shell(RELEASE)
