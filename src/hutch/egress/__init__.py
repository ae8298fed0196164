"""Access to the network: egress policy, address checks, resolver, HTTP client, proxy and redaction."""
