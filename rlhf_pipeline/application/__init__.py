"""The Dagster application over the library: assets, jobs, sensors, resources, driver, definitions.

Its sources lie at the top of the repository, where Dagster's users look for them. The links beside
this file give them one import name, the same in a checkout, an editable install and the wheel,
into which setuptools copies what they point to; so no path is added to `sys.path`, and a project's
own `assets.py` or `jobs/` does not collide.
"""

import warnings

import dagster as dg

from rlhf_pipeline.core.config import collect_garbage_rarely

collect_garbage_rarely()  # the imports that follow make many objects
# backfill_policy is marked as beta, and the version is pinned: these lines would stand above what a
# command prints.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
