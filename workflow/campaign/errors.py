"""The one exception whose text is meant for the person at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable


class CampaignError(Exception):
    """Something a person can mend: one sentence that says what, in which file and key, and what to do."""


def run(main: Callable[[], int]) -> None:
    """Run a command's main function; a CampaignError becomes one line on stderr and exit status 2."""
    try:
        code = main()
    except CampaignError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:
        code = 141
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
