"""One rule an instrument; each job attaches to the engine of its boot, or boots it again, and leaves one cell."""


rule probe:
    """One point of the streaming probe: TTFT and decode rate of cold prompts, pass by pass."""
    input:
        "results/{campaign}/{variant}/{boot}/warm_up.json",
    output:
        update("results/{campaign}/{variant}/{boot}/probe/{point}.json"),
    log:
        "results/{campaign}/{variant}/{boot}/probe/{point}.log",
    priority: PLAN.cell_priority("probe")
    resources:
        **PLAN.venue_resources,
    params:
        instrument="probe",
        fingerprint=PLAN.cell_fingerprint("probe"),
    shell:
        "python -m campaign.cell"
        " --campaign {wildcards.campaign}"
        " --variant {wildcards.variant}"
        " --boot {wildcards.boot}"
        " --instrument {params.instrument}"
        " --point {wildcards.point}"
        " --fingerprint {params.fingerprint}"
        " --out {output}"
        " > {log} 2>&1"


use rule probe as llama_benchy with:
    """One point of llama-benchy: pp and tg of one depth and concurrency, run by run."""
    output:
        update("results/{campaign}/{variant}/{boot}/llama_benchy/{point}.json"),
    log:
        "results/{campaign}/{variant}/{boot}/llama_benchy/{point}.log",
    priority: PLAN.cell_priority("llama_benchy")
    params:
        instrument="llama_benchy",
        fingerprint=PLAN.cell_fingerprint("llama_benchy"),


use rule probe as tool_eval with:
    """One run of tool-eval-bench: which scenarios the model passes."""
    output:
        update("results/{campaign}/{variant}/{boot}/tool_eval/{point}.json"),
    log:
        "results/{campaign}/{variant}/{boot}/tool_eval/{point}.log",
    priority: PLAN.cell_priority("tool_eval")
    params:
        instrument="tool_eval",
        fingerprint=PLAN.cell_fingerprint("tool_eval"),
