"""What is given of a service's settings, in all places together, and what is wrong with it."""

# ruff: noqa: PLC0415 - commands of people have none of these settings, and answer sooner without pydantic and YAML

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.forms import violations_of
from fanfold.model.validation import nearest_name
from fanfold.settings.layers import Layer, Location, by_hand, depth, merged, without
from fanfold.settings.variables import environment_layer, variable_of

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

_Model = TypeVar("_Model", bound="BaseModel")


def load_settings(
    model: type[_Model], *, file: Path | None = None, env_prefix: str, overrides: Mapping[str, Any] | None = None
) -> _Model:
    """Settings of type `model`; the arguments, and what is raised, are those of `Given` and its `settings`."""
    return Given(model, file=file, env_prefix=env_prefix, overrides=overrides).settings()


class Given(Generic[_Model]):
    """What is given of settings of type `model`: in `file`, over that in the environment, over both `overrides`.

    A key `listen.port` is the variable `<env_prefix>LISTEN__PORT`; lists and mappings are given as JSON. A prefix that
    ends in two underscores keeps clear of the variables that Kubernetes makes up for services of the same name.

    Args:
        model: a pydantic model with `extra="forbid"`.
        file: YAML, or TOML if it is called so. None means no file.
        env_prefix: what the names of its variables begin with, in upper case.
        overrides: nested mappings, as from a command line; None means not given.

    Raises:
        InvalidArgument: the file cannot be read, or is no settings; names the line.
    """

    def __init__(
        self,
        model: type[_Model],
        *,
        file: Path | None = None,
        env_prefix: str,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._file = file
        self._prefix = env_prefix
        self._layers: list[Layer] = [by_hand(overrides or {}), environment_layer(env_prefix)]
        if file is not None:
            from fanfold.settings.files import file_layer

            self._layers.append(file_layer(file))

    def settings(self) -> _Model:
        """What it comes to.

        Raises:
            InvalidArgument: names each wrong key, the limit, and the place that it comes from; never a value.
        """
        settings, wrong = self.sound()
        if wrong or settings is None:
            raise InvalidArgument(violations=wrong, reason="SETTINGS_INVALID")
        return settings

    def sound(self) -> tuple[_Model | None, list[FieldViolation]]:
        """The settings without what is wrong, None if nothing sound is left; and what that is."""
        from pydantic import ValidationError

        values = merged(self._layers)
        try:
            return self._model.model_validate(values), []
        except ValidationError as error:
            details = error.errors(include_input=False)
            wrong = [
                self._told(violation, each) for violation, each in zip(violations_of(error, ""), details, strict=True)
            ]
        for each in details:
            values = without(values, tuple(each["loc"]))
        try:
            return self._model.model_validate(values), wrong
        except ValidationError:  # something that has to be given is not
            return None, wrong

    def sources(self, location: Location) -> list[str]:
        """Where the setting comes from, in words. Empty: it is the default. Several: it is a mapping of their parts."""
        found = [layer.source(location) for layer in self._layers if depth(layer.values, location) == len(location)]
        value = _value_at(merged(self._layers), location)
        return found if isinstance(value, Mapping) else found[:1]

    def placed(self, violation: FieldViolation) -> FieldViolation:
        """A violation found in settings that are sound, with the places that its field comes from."""
        place = ", ".join(self.sources(_location_of(violation.field))) or "the default"
        return FieldViolation(violation.field, f"{violation.description} ({place})")

    def _told(self, violation: FieldViolation, details: ErrorDetails) -> FieldViolation:
        place = self._place(tuple(details["loc"]))
        return FieldViolation(violation.field, f"{violation.description}{_meant(self._model, details)} ({place})")

    def _place(self, location: Location) -> str:
        """Where the setting at `location` comes from; where to give it if it comes from nowhere."""
        deepest = max(self._layers, key=lambda layer: depth(layer.values, location))  # of equals the one on top
        reached = depth(deepest.values, location)
        if reached == len(location) or any(isinstance(part, int) for part in location[:reached]):
            return deepest.source(location)
        return f"give it as {variable_of(self._prefix, location)}" + (f" or in {self._file}" if self._file else "")


def _location_of(field: str) -> Location:
    """The location that a path as `nodes.static[1]` names."""
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", field))


def _value_at(values: Any, location: Location) -> Any:
    for part in location:
        match values:
            case Mapping():
                values = values.get(part)
            case list() if isinstance(part, int) and part < len(values):
                values = values[part]
            case _:
                return None
    return values


def _meant(model: type[BaseModel], details: ErrorDetails) -> str:
    """The words that say how a list is given, in files and in variables, and of an unknown key which one was meant."""
    if details["type"] == "list_type":
        return ', as ["one", "two"]'
    if details["type"] != "extra_forbidden":
        return ""
    *parents, key = details["loc"]
    section: type[BaseModel] | None = model
    for parent in parents:
        if section is not None and isinstance(parent, str):  # numbers are places in lists
            field = section.model_fields.get(parent)
            section = field and _section_of(field.annotation)
    nearest = nearest_name(str(key), section.model_fields) if section else ""
    return f"; did you mean {nearest}?" if nearest else ""


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field of this type is, or has."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _section_of(each))), None)
