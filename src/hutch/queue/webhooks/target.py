"""Checks targets of webhooks before a run is accepted."""

from __future__ import annotations

from hutch.egress import addresses
from hutch.egress.policy import EgressPolicy, EgressRefused
from hutch.errors import InvalidInput
from hutch.queue.models import MAX_URL_CHARS, Webhook
from hutch.queue.webhooks.signature import decode_secret


class TargetPolicy:
    """Checks URLs with the operator's egress policy for webhooks. When a message is sent, the HTTP client
    checks the host again, and its addresses.
    """

    def __init__(self, policy: EgressPolicy) -> None:
        self.policy = policy

    def check(self, webhook: Webhook) -> None:
        """Raises InvalidInput if the URL is not permitted or the secret is not valid."""
        if len(webhook.url) > MAX_URL_CHARS:
            raise InvalidInput("url", f"expected at most {MAX_URL_CHARS} characters.")
        try:
            url = addresses.parse_url(webhook.url)
            host = addresses.parse_host(url.host)
            self.policy.check_host(host, url.port)
        except (ValueError, EgressRefused) as error:
            raise InvalidInput("url", str(error)) from None
        reason = None if isinstance(host, str) else self.policy.refusal(host, url.port, host)
        if reason is not None:
            raise InvalidInput("url", reason)
        if url.scheme == "http" and not self.policy.permits_http(host, url.port):
            raise InvalidInput("url", "expected https; the operator can allow http with egress_http_hosts.")
        if webhook.secret is not None:
            decode_secret(webhook.secret)
