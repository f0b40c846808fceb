"""llama.cpp's own C++ server, as the wheel `xllamacpp` carries it, behind llama-server's flag names.

A lane written for a `llama-server` on PATH and one written for `python -m campaign.llama_server` look
alike: the names, defaults and values are llama-server's. What differs: one slot unless -np says more, a
model from a local file only, the API key from the environment only (LLAMA_API_KEY), and exit status 2 for
a bad command line. The log goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from operator import attrgetter
from types import FrameType
from typing import Any

import xllamacpp as cpp

from campaign.errors import run

SPECULATION = [
    member.name.removeprefix("COMMON_SPECULATIVE_TYPE_").lower().replace("_", "-")
    for member in cpp.common_speculative_type
    if not member.name.endswith("_COUNT")
]
LOAD_MODES = {
    "auto": "AUTO",
    "none": "NONE",
    "mmap": "MMAP",
    "mlock": "MLOCK",
    "mmap+mlock": "MMAP_MLOCK",
    "dio": "DIRECT_IO",
}
FLASH_ATTENTION = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}
CACHE_TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


def _load_mode(text: str) -> Any:
    return cpp.llama_load_mode[f"LLAMA_LOAD_MODE_{LOAD_MODES[text]}"]


def _flash_attention(text: str) -> Any:
    return cpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{FLASH_ATTENTION[text]}"]


def _cache_type(text: str) -> Any:
    return cpp.ggml_type[f"GGML_TYPE_{text.upper()}"]


def _speculation(text: str) -> Any:
    return [
        cpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{name.strip().upper().replace('-', '_')}"]
        for name in text.split(",")
    ]


def _unsigned(text: str) -> int:
    return int(text) % 2**32


def _one_of(convert: Callable[[str], Any], names: Sequence[str]) -> Callable[[str], Any]:
    """The converter, with its KeyError turned into the list of what may be given."""

    def checked(text: str) -> Any:
        try:
            return convert(text)
        except KeyError:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}") from None

    return checked


def _alias(text: str) -> set[str]:
    return {name.strip() for name in text.split(",")}


def _hosts(text: str) -> list[str]:
    return [text]


@dataclass(frozen=True)
class Flag:
    """llama-server's names of one setting, and the field of xllamacpp.CommonParams that it goes to.

    With `convert` the flag takes a value; with `const` it takes none and sets that.
    """

    names: str
    field: str
    convert: Callable[[str], Any] | None = None
    const: Any = None


FLAGS = (
    Flag("-m --model", "model.path", str),
    Flag("-a --alias", "model_alias", _alias),
    Flag("--host", "hostnames", _hosts),
    Flag("--port", "port", int),
    Flag("-c --ctx-size", "n_ctx", int),
    Flag("-b --batch-size", "n_batch", int),
    Flag("-ub --ubatch-size", "n_ubatch", int),
    Flag("-n --predict --n-predict", "n_predict", int),
    Flag("-np --parallel", "n_parallel", int),
    Flag("-kvu --kv-unified", "kv_unified", const=True),
    Flag("-no-kvu --no-kv-unified", "kv_unified", const=False),
    Flag("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers", int),
    Flag("-t --threads", "cpuparams.n_threads", int),
    Flag("-tb --threads-batch", "cpuparams_batch.n_threads", int),
    Flag("-ctk --cache-type-k", "cache_type_k", _one_of(_cache_type, CACHE_TYPES)),
    Flag("-ctv --cache-type-v", "cache_type_v", _one_of(_cache_type, CACHE_TYPES)),
    Flag("-fa --flash-attn", "flash_attn_type", _one_of(_flash_attention, list(FLASH_ATTENTION))),
    Flag("-lm --load-mode", "load_mode", _one_of(_load_mode, list(LOAD_MODES))),
    Flag("--mlock", "load_mode", const=_load_mode("mlock")),
    Flag("--mmap", "load_mode", const=_load_mode("mmap")),
    Flag("--no-mmap", "load_mode", const=_load_mode("none")),
    Flag("--warmup", "warmup", const=True),
    Flag("--no-warmup", "warmup", const=False),
    Flag("-s --seed", "sampling.seed", _unsigned),
    Flag("--temp --temperature", "sampling.temp", float),
    Flag("--cache-prompt", "cache_prompt", const=True),
    Flag("--no-cache-prompt", "cache_prompt", const=False),
    Flag("-cram --cache-ram", "cache_ram_mib", int),
    Flag("--jinja", "use_jinja", const=True),
    Flag("--no-jinja", "use_jinja", const=False),
    Flag("--metrics", "endpoint_metrics", const=True),
    Flag("--slots", "endpoint_slots", const=True),
    Flag("--no-slots", "endpoint_slots", const=False),
    Flag("--props", "endpoint_props", const=True),
    Flag("-lv --verbosity --log-verbosity", "verbosity", int),
    Flag("--spec-type", "speculative.types", _one_of(_speculation, SPECULATION)),
    Flag("-md --model-draft --spec-draft-model", "speculative.draft.mparams.path", str),
    Flag("--spec-draft-n-max", "speculative.draft.n_max", int),
    Flag("--spec-draft-n-min", "speculative.draft.n_min", int),
    Flag("--spec-draft-p-min --draft-p-min", "speculative.draft.p_min", float),
    Flag("--spec-ngram-mod-n-match", "speculative.ngram_mod.n_match", int),
    Flag("--spec-ngram-mod-n-min", "speculative.ngram_mod.n_min", int),
    Flag("--spec-ngram-mod-n-max", "speculative.ngram_mod.n_max", int),
    *(
        Flag(f"--spec-ngram-{kind}-{setting}", f"speculative.ngram_{kind}.{setting}".replace("-", "_"), int)
        for kind in ("simple", "map-k", "map-k4v")
        for setting in ("size-n", "size-m", "min-hits")
    ),
)


def parser() -> argparse.ArgumentParser:
    """The command line: one entry for each FLAG; a flag that is not given leaves llama.cpp's own default."""
    made = argparse.ArgumentParser(prog="llama_server", description=__doc__, allow_abbrev=False)
    made.add_argument("--version", action="version", version=f"version: xllamacpp {version('xllamacpp')}")
    for flag in FLAGS:
        names = flag.names.split()
        options: dict[str, Any] = {"dest": flag.field, "default": argparse.SUPPRESS, "help": flag.field}
        if flag.convert is None:
            made.add_argument(*names, action="store_const", const=flag.const, **options)
        else:
            metavar = flag.field.rpartition(".")[2].upper()
            required = flag.field == "model.path"
            made.add_argument(*names, type=flag.convert, metavar=metavar, required=required, **options)
    return made


def params_of(argv: Sequence[str]) -> Any:
    """The xllamacpp.CommonParams of a llama-server command line; a bad one ends the process with status 2."""
    params = cpp.CommonParams()
    params.port = 8080
    params.offline = True
    params.api_keys = [key for key in os.environ.get("LLAMA_API_KEY", "").split(",") if key]
    for field, value in vars(parser().parse_args(argv)).items():
        owner, _, name = field.rpartition(".")
        setattr(attrgetter(owner)(params) if owner else params, name, value)
    return params


def serve(params: Any) -> int:
    """Load the model and answer HTTP until SIGTERM or SIGINT; 0 then, 1 when the server could not start."""
    # Loading holds the GIL, so that no Python handler could run: let the signal end the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        _held = cpp.Server(params)
    except RuntimeError:
        what = f"{params.model.path} on {params.hostnames[0]}:{params.port}"
        print(f"error: cannot serve {what}; the lines above say why", file=sys.stderr, flush=True)
        return 1
    _wait_for_signal()
    sys.stdout.flush()
    sys.stderr.flush()
    # Deleting a server waits 30 s for a request in flight, and holds the GIL while it does.
    os._exit(0)


def _wait_for_signal() -> None:
    # The kernel may hand the signal to one of llama.cpp's threads; the wakeup pipe hears of it all the same.
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)

    def note(_number: int, _frame: FrameType | None) -> None:
        pass

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    os.read(heard, 1)


def main() -> int:
    """Run the server that the command line asks for."""
    params = params_of(sys.argv[1:])
    print(f"llama_server: xllamacpp {version('xllamacpp')}", file=sys.stderr, flush=True)
    return serve(params)


if __name__ == "__main__":
    run(main)
