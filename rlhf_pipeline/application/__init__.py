"""The Dagster application over the library: assets, jobs, sensors, resources, driver, definitions.

Its sources lie at the top of the repository, where Dagster's users look for them. The links beside
this file give them one import name, the same in a checkout, an editable install and the wheel,
into which setuptools copies what they point to; so no path is added to `sys.path`, and a project's
own `assets.py` or `jobs/` does not collide.
"""
