"""The streaming probe: cold prompts of a known size, discarded warm-ups, N measured passes.

    python -m campaign.probe --base-url URL/v1 --model NAME --out FILE

writes an outcome, whatever happened, and exits 0; 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign import prompts
from campaign.client import Client, RawAnswer
from campaign.counters import Window
from campaign.errors import CampaignError, run
from campaign.outcome import Measurement, Outcome, now
from campaign.passes import Pass, Stream, judge, metrics, readings
from campaign.settings import PROTOCOLS, Endpoint, ProbePoint
from campaign.stream import StreamReading, read_stream

CALIBRATION_WORDS = (0, 128)


def measure(endpoint: Endpoint, point: ProbePoint) -> Measurement:
    """Probe a live engine at one point. Never raises for what the engine does: that is the measurement.

    Metrics: ttft_s (s), decode_tps, prefill_tps (tok/s), one value a stream; agg_decode_tps, agg_prefill_tps
    one a pass where concurrency > 1; see campaign.passes.metrics. `passes` has one object a stream and pass,
    `details` the warm-ups, the calibration, the engine's counters, and how far its own clock disagrees.
    """
    with Client(endpoint, point.timeout_s) as client:
        return _Probe(endpoint, point, client).measure()


class _Probe:
    def __init__(self, endpoint: Endpoint, point: ProbePoint, client: Client) -> None:
        self.endpoint, self.point, self.client = endpoint, point, client
        self.asked = {"ignore_eos", "continuous_usage_stats"}
        self.sizes: list[tuple[int, int]] = []
        self.template_tokens = 0
        self.key = os.environ.get(endpoint.api_key_env or "")

    def measure(self) -> Measurement:
        ready = self._calibrate()
        warm_ups, _ = self._passes(self.point.warmups if ready else 0)
        if ready and not warm_ups:
            self._calibrate_at(self._words())
        passes, windows = self._passes(self.point.passes)
        sized = prompts.Sizing.of(self.sizes) is not None
        status, reason = judge(passes, self.point.prompt_tokens if sized else None)
        answers = readings(passes)
        flags = {flag for reading in answers for flag in reading.flags}
        if not sized:
            flags.add("prompt_size_unverified")
        if any(reading.outcome == "error" for reading in readings(warm_ups)):
            flags.add("warm_up_error")
        acceptance = [window.acceptance for window in windows]
        return Measurement(
            status=status,
            reason=reason,
            metrics=metrics(passes, [a.length if a else None for a in acceptance])
            if status in ("ok", "invalid")
            else {},
            flags=sorted(flags),
            provenance=self._provenance(),
            passes=[row for one in passes for row in one.rows()],
            details={
                "warm_ups": [row for one in warm_ups for row in one.rows()],
                "calibration": {"sizes": self.sizes, "template_tokens": self.template_tokens},
                "counters": [window.facts() for window in windows],
                "decode_vs_engine_max": _disagreement(answers),
            },
        )

    def _provenance(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOLS["probe"],
            "model": self.endpoint.model,
            "asked": sorted(self.asked),
            "h11": importlib.metadata.version("h11"),
            "python": platform.python_version(),
        }

    def _body(self, content: str, max_tokens: int) -> dict[str, Any]:
        options = {"include_usage": True}
        if "continuous_usage_stats" in self.asked:
            options["continuous_usage_stats"] = True
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": options,
        }
        return body | {name: True for name in ("ignore_eos", "timings_per_token") if name in self.asked}

    def _calibrate(self) -> bool:
        """Learn the chat template's length and how size grows; False if even this is not answered."""
        first = self._ask(prompts.WORDS[0])
        while first.outcome == "error" and (refused := self._refused(first)):
            self.asked.discard(refused)
            first = self._ask(prompts.WORDS[0])
        if first.outcome == "error":
            return False
        if first.engine:
            # llama.cpp gives a count on each delta, at the price of some bytes; others don't know the option.
            self.asked.add("timings_per_token")
        if not all(self._calibrate_at(words) for words in CALIBRATION_WORDS):
            return False
        if first.prompt_tokens is not None and prompts.Sizing.of(self.sizes):
            self.template_tokens = first.prompt_tokens - 1
        return True

    def _refused(self, reading: StreamReading) -> str | None:
        return next((name for name in self.asked if name in (reading.error or "")), None)

    def _calibrate_at(self, words: int) -> bool:
        reading = self._ask(prompts.cold_prompt(words))
        self._note_size(words, reading)
        return reading.outcome != "error"

    def _ask(self, content: str) -> StreamReading:
        """One request for a single token."""
        return self._read(self.client.send([self._body(content, 1)]).answers[0], None)

    def _note_size(self, words: int, reading: StreamReading) -> None:
        if reading.prompt_tokens is not None:
            self.sizes.append((words, reading.prompt_tokens))

    def _words(self) -> int:
        sizing = prompts.Sizing.of(self.sizes)
        return sizing.words(self.point.prompt_tokens) if sizing else self.point.prompt_tokens

    def _passes(self, count: int) -> tuple[list[Pass], list[Window]]:
        passes: list[Pass] = []
        windows: list[Window] = []
        for number in range(1, count + 1):
            one, window = self._pass(number)
            passes.append(one)
            windows.append(window)
            if one.broken:
                break
        return passes, windows

    def _pass(self, number: int) -> tuple[Pass, Window]:
        words = self._words()
        contents = [prompts.cold_prompt(words) for _ in range(self.point.concurrency)]
        bodies = [self._body(content, self.point.max_tokens) for content in contents]
        with Window(self.endpoint) as window:
            flight = self.client.send(bodies)
        length = window.acceptance.length if window.acceptance else None
        streams = tuple(Stream(answer.t0, self._read(answer, length)) for answer in flight.answers)
        self._note_size(words, streams[0].reading)
        seen = [stream.reading for stream in streams]
        foreign = window.foreign(
            len(seen),
            len(seen),
            _sum([r.prompt_tokens for r in seen]),
            sum(r.cached_tokens or 0 for r in seen),
            _sum([r.completion_tokens for r in seen]),
        )
        in_engine = {
            "before": window.before.in_engine if window.before else None,
            "during_max": max((c.in_engine for c in window.during if c.in_engine is not None), default=None),
            "after": window.after.in_engine if window.after else None,
        }
        warm = window.warm(self.template_tokens * len(seen))
        return Pass(number, streams, flight.lag_s, foreign, in_engine, warm), window

    def _read(self, answer: RawAnswer, acceptance_length: float | None) -> StreamReading:
        if answer.unreachable:
            return StreamReading("error", flags=("connection",), error=answer.detail)
        reading = read_stream(
            answer.reads,
            max_tokens=self.point.max_tokens,
            ending=answer.ending,
            http_status=answer.status,
            content_type=answer.content_type,
            template_tokens=self.template_tokens,
            acceptance_length=acceptance_length,
        )
        if reading.error is None:
            return reading
        error = f"{reading.error}: {answer.detail}" if answer.detail else reading.error
        return replace(reading, error=error.replace(self.key, "***") if self.key else error)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None


def _disagreement(answers: Sequence[StreamReading]) -> float | None:
    """The largest relative difference of our decode rate from the engine's own, where it has one."""
    pairs = [(r.decode_tps, r.engine_decode_tps) for r in answers]
    return max((abs(ours - its) / its for ours, its in pairs if ours and its), default=None)


def parser() -> argparse.ArgumentParser:
    """The command line; its defaults are the reference protocol's."""

    def count(text: str) -> int:
        if (n := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"{text} is not at least 1")
        return n

    def seconds(text: str) -> float:
        if not (s := float(text)) > 0:
            raise argparse.ArgumentTypeError(f"{text} is not more than 0")
        return s

    made = argparse.ArgumentParser(
        prog="python -m campaign.probe", description="Probe a live engine's streams."
    )
    made.add_argument("--base-url", required=True, help="the OpenAI endpoint, ending in /v1")
    made.add_argument("--model", required=True, help="the model's name as the engine serves it")
    made.add_argument("--prompt-tokens", type=count, default=2048, help="size of the cold prompts (2048)")
    made.add_argument("--max-tokens", type=count, default=256, help="tokens asked of each answer (256)")
    made.add_argument("--warmups", type=int, default=2, help="passes made first and discarded (2)")
    made.add_argument("--passes", type=count, default=5, help="measured passes (5)")
    made.add_argument("--concurrency", type=count, default=1, help="requests in flight at once (1)")
    made.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    made.add_argument("--timeout", type=seconds, default=600.0, help="seconds that one answer may take (600)")
    made.add_argument("--out", type=Path, required=True, help="the outcome's JSON file")
    return made


def main() -> int:
    """The command: probe and write the outcome."""
    args = parser().parse_args()
    if not args.base_url.startswith(("http://", "https://")):
        raise CampaignError(
            f"--base-url {args.base_url} is no http(s) URL; give the engine's, ending in /v1."
        )
    if args.api_key_env and not os.environ.get(args.api_key_env):
        raise CampaignError(
            f"--api-key-env {args.api_key_env}: that variable is not set; export the key in it."
        )
    point = ProbePoint(
        prompt_tokens=args.prompt_tokens,
        max_tokens=args.max_tokens,
        concurrency=args.concurrency,
        warmups=max(0, args.warmups),
        passes=args.passes,
        timeout_s=args.timeout,
    )
    started = now()
    measured = measure(Endpoint(args.base_url, args.model, args.api_key_env), point)
    outcome = Outcome(instrument="probe", point=point.name, started=started, ended=now(), **dict(measured))
    outcome.write(args.out)
    return 0


if __name__ == "__main__":
    run(main)
