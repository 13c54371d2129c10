"""The service `producer`: feeds /fleet/run/run.toml, and tells Docker when to start it again.

`producer enqueue` ends with status 1 when the run is over and some prompts are in the dead
letters. Under `restart: on-failure` that would be started again for ever, so here it is 0.
"""

import sys

from producer.cli import main
from producer.console import Exit

sys.argv[1:] = ["enqueue", "run/run.toml", "--yes"]
try:
    main()
except SystemExit as end:
    raise SystemExit(0 if end.code == Exit.SOME_FAILED else end.code) from None
