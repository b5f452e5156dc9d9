"""Request and response models of `/api/v1/quotas`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from headrace.api.schemas.common import RequestBody
from headrace.model.quotas import MAX_QUOTA, Quota

QuotaValue = Annotated[int, Field(ge=0, le=MAX_QUOTA)]


class QuotaDocument(BaseModel):
    quota: str = Field(examples=["warm_jobs"])
    level: str = Field(description="environment, project, organisation or default.", examples=["environment"])
    limit: int | None = Field(description="Null: no quota.", examples=[10_000])
    source: str | None = Field(
        description="own: set for this tenant; default: the default of all environments; null: no quota.",
        examples=["own"],
    )
    used: int | None = Field(
        description="Null for rates, and if the key's scope does not cover everything that the quota covers.",
        examples=[812],
    )
    share: int | None = Field(
        description="For quotas of a project or organisation: the part that the environment may currently use.",
        examples=[None],
    )


class QuotaList(BaseModel):
    org: str | None = Field(examples=["acme"])
    project: str | None = Field(examples=["shop"])
    env: str | None = Field(examples=["prod"])
    quotas: list[QuotaDocument]


class QuotaChange(RequestBody):
    quotas: dict[Quota, QuotaValue | None] = Field(
        description="Quotas to set; omitted ones are unchanged. Null: no quota, regardless of the default.",
        examples=[{"warm_jobs": 10_000, "enqueue_rate": 200}],
        min_length=1,
    )
