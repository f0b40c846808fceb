"""Boot and warm-up of each boot of the order. Both records are kept: an engine that is gone is booted again."""


rule boot:
    """How one boot went: seconds to the first token and what the engine's log told, or why it failed."""
    output:
        update("results/{campaign}/{variant}/{boot}/boot.json"),
    log:
        "results/{campaign}/{variant}/{boot}/boot.log",
    priority: PLAN.boot_priority
    resources:
        **PLAN.venue_resources,
    params:
        fingerprint=PLAN.boot_fingerprint,
    shell:
        "python -m campaign.cell"
        " --campaign {wildcards.campaign}"
        " --variant {wildcards.variant}"
        " --boot {wildcards.boot}"
        " --instrument boot"
        " --fingerprint {params.fingerprint}"
        " --out {output}"
        " > {log} 2>&1"


rule warm_up:
    """The warm-up requests of one boot, made and discarded."""
    input:
        "results/{campaign}/{variant}/{boot}/boot.json",
    output:
        update("results/{campaign}/{variant}/{boot}/warm_up.json"),
    log:
        "results/{campaign}/{variant}/{boot}/warm_up.log",
    priority: PLAN.warm_up_priority
    resources:
        **PLAN.venue_resources,
    params:
        fingerprint=PLAN.boot_fingerprint,
    shell:
        "python -m campaign.cell"
        " --campaign {wildcards.campaign}"
        " --variant {wildcards.variant}"
        " --boot {wildcards.boot}"
        " --instrument warm_up"
        " --fingerprint {params.fingerprint}"
        " --out {output}"
        " > {log} 2>&1"
