"""What the settings of all services are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts, in the plural."""

    name: str


class Section(BaseModel):
    """Settings that belong together. Keys that it does not know are refused; docstrings of fields are their meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False), Unit("seconds")]
Age = Annotated[float, Field(gt=0, le=3_650 * 86_400, allow_inf_nan=False), Unit("seconds")]
