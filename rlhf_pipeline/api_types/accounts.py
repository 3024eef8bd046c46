"""Users, their roles, tokens and sessions."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rlhf_pipeline.api_types.base import Answer, Name, Request
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import Role, Text, Token, User


class Login(Request):
    email: Annotated[Text, Field(max_length=254)]
    password: Annotated[Text, Field(max_length=1000)]


class Redemption(Request):
    token: Annotated[Text, Field(max_length=200)]


class PasswordChange(Request):
    old_password: Annotated[Text, Field(max_length=1000)] | None = None
    new_password: Annotated[Text, Field(max_length=1000)]


class Me(Answer):
    user_id: str
    name: str
    email: str
    roles: tuple[Role, ...]
    permissions: tuple[Permission, ...]
    project: str

    @field_validator("permissions", mode="before")
    @classmethod
    def _ignore_unknown_permissions(cls, names: Any) -> Any:
        """Drops the permissions that a newer server adds."""
        return [name for name in names if name in set(Permission)]


class NewToken(Request):
    name: Name
    scopes: list[Permission] | None = Field(default=None, max_length=len(Permission))
    days: int = Field(default=90, ge=1, le=366)


class IssuedToken(Token):
    secret: str = Field(description="Shown only once.")


class NewUser(Request):
    email: Annotated[Text, Field(max_length=254)]
    name: Annotated[Text, Field(max_length=200)] = ""
    roles: list[Role] = Field(default=[], max_length=len(Role))
    kind: Literal["person", "service"] = "person"


class AddedUser(User):
    login_link: str | None = Field(
        description="Logs its first visitor in, once, for 24 hours. Null if the request was made "
        "with a token, and in the answer to a repeated request."
    )


class UserChange(Request):
    name: Name | None = None
    roles: list[Role] | None = Field(default=None, max_length=len(Role))
    disabled: bool | None = None


class LoginLink(Answer):
    login_link: str | None
    expires_at: datetime
