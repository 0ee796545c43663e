"""The configuration: loaded once from YAML file, environment and --set, validated, frozen, and passed in.

loaded = load(path, sets=["worker.count=8"])
loaded.config.worker.count, loaded.origins["worker.count"]
"""

from fileq.config.load import Loaded, config_from, load
from fileq.config.schema import Config

__all__ = ["Config", "Loaded", "config_from", "load"]
