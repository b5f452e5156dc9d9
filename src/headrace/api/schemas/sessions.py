"""Request and response models for browser sessions."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace.api.schemas.common import Time


class SignIn(BaseModel):
    key: str = Field(max_length=256, description="API key, `hr_…`.")


class SessionDocument(BaseModel):
    """Session of a browser."""

    id: str = Field(examples=["5be1a09c4f7730d2"])
    key_id: str = Field(description="Key of the session.", examples=["0f3a91c2be77"])
    key_name: str = Field(examples=["deploys"])
    level: str = Field(examples=["operate"])
    org: str | None = Field(description="Scope of the key; null: all.", examples=["acme"])
    project: str | None = Field(examples=["shop"])
    env: str | None = Field(examples=["prod"])
    via: str = Field(description="How the session was started: `key` or `link`.", examples=["key"])
    address: str = Field(description="Client address at sign-in.", examples=["10.0.0.7"])
    user_agent: str = Field(examples=["Mozilla/5.0 (X11; Linux x86_64)"])
    created_at: Time = Field(examples=["2026-01-31T12:00:03.638Z"])
    last_used_at: Time | None = Field(description="Accurate to about a minute.", examples=["2026-01-31T12:41:00.000Z"])
    expires_at: Time = Field(examples=["2026-02-01T00:00:03.638Z"])
    current: bool = Field(description="True for the session of this request.", examples=[False])


class SessionList(BaseModel):
    sessions: list[SessionDocument]
    next: str | None = Field(description="`cursor` of the next page; null: this is the last.")
