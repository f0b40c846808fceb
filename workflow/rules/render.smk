"""From outcomes to what people read; nothing here talks to an engine."""


rule summary:
    """All outcomes of a campaign as one tidy row a metric, and the configuration that they were planned with."""
    input:
        PLAN.campaign_records,
    output:
        csv="results/{campaign}/cells.csv",
        config="results/{campaign}/effective.yaml",
    log:
        "results/{campaign}/summary.log",
    params:
        fingerprint=PLAN.campaign_fingerprint,
    shell:
        "python -m campaign.summary"
        " --campaign {wildcards.campaign}"
        " --csv {output.csv}"
        " --config {output.config}"
        " > {log} 2>&1"


rule report:
    """The campaign's writeup."""
    input:
        cells="results/{campaign}/cells.csv",
        templates=PLAN.templates,
    output:
        "reports/{campaign}.md",
    log:
        "results/{campaign}/report.log",
    params:
        prose=PLAN.prose_fingerprint,
    shell:
        "python -m campaign.report"
        " --campaign {wildcards.campaign}"
        " --out {output}"
        " > {log} 2>&1"
