"""Restrictions that the operator places on channels.

Checked when a channel is created and again before each message, because a channel may be older than the settings.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from headrace.settings import AlertsSettings

LOCAL_SCHEMES = frozenset({"dbus", "kde", "qt", "glib", "gio", "gnome", "macosx", "windows", "syslog", "blink1"})
"""Apprise schemes that act on the machine itself; no setting allows them."""

FILE_PARAMETERS = frozenset({"template", "keyfile", "subfile"})
"""Parameters of Apprise URLs that some plugin reads as file names, in addition to those that start with `pgp`."""

ANY_DOMAIN = "*"


@dataclass(frozen=True)
class ChannelPolicy:
    apprise_schemes: frozenset[str]
    email_domains: Mapping[str, Collection[str]]  # organisation → domains in lower case; ANY stands for all others

    @classmethod
    def from_settings(cls, settings: AlertsSettings) -> ChannelPolicy:
        domains = settings.email_domains
        if domains is None:
            domains = {ANY_DOMAIN: (settings.email_from.rpartition("@")[2],)}
        lowered = {org: frozenset(domain.lower() for domain in named) for org, named in domains.items()}
        return cls(frozenset(settings.apprise_schemes), lowered)

    def find_problem(self, kind: str, config: Mapping[str, Any], org: str) -> str | None:
        """Return why an organisation may not have a channel of this type and configuration; None if it may."""
        if kind == "apprise":
            return self._find_apprise_problem(config["url"])
        return self._find_email_problem(config["to"], org) if kind == "email" else None

    def _find_email_problem(self, recipients: Sequence[str], org: str) -> str | None:
        allowed = self.email_domains.get(org, self.email_domains.get(ANY_DOMAIN, ()))
        refused = [each for each in recipients if each.rpartition("@")[2].lower() not in allowed]
        if not refused or ANY_DOMAIN in allowed:
            return None
        return (
            f"mail to {refused[0]} is not allowed: the operator allows this organisation "
            f"{', '.join(sorted(allowed)) or 'no domain'} (alerts.email_domains)"
        )

    def _find_apprise_problem(self, url: str) -> str | None:
        match = re.match(r"([A-Za-z0-9]+)://", url)
        if not match:
            return "url must begin with an Apprise scheme, such as tgram://"
        scheme = match[1].lower()
        if scheme in LOCAL_SCHEMES:
            return f"{scheme}:// acts on the server's own machine, which is not allowed"
        if scheme not in self.apprise_schemes:
            return f"{scheme}:// is not among the services that the operator allows (alerts.apprise_schemes)"
        if (named := find_file_parameter(url)) is not None:
            return f"the parameter {named} may name a file on the server, which is not allowed"
        return None


DEFAULT_POLICY = ChannelPolicy.from_settings(AlertsSettings())


def find_file_parameter(url: str) -> str | None:
    """Return the first parameter of an Apprise URL that may name a file; None if there is none."""
    for part in re.split(r"[?&;]", url)[1:]:
        name = unquote(part.partition("=")[0]).strip().lower().lstrip("+-:")
        if name in FILE_PARAMETERS or name.startswith("pgp"):
            return name
    return None
