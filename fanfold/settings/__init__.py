"""Settings: a file, over it the environment, over both what was given by hand."""

from fanfold.settings.client import (
    DEFAULT_REGISTRY,
    DEFAULT_SERVER,
    REGISTRY_VARIABLE,
    SERVER_VARIABLE,
    ClientSettings,
    client_settings,
)
from fanfold.settings.environment import adopt_environment, child_environment, command_environment, full_environment
from fanfold.settings.given import Given, load_settings

__all__ = [
    "DEFAULT_REGISTRY",
    "DEFAULT_SERVER",
    "REGISTRY_VARIABLE",
    "SERVER_VARIABLE",
    "ClientSettings",
    "Given",
    "adopt_environment",
    "child_environment",
    "client_settings",
    "command_environment",
    "full_environment",
    "load_settings",
]
