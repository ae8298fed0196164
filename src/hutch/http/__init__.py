"""Code that all HTTP protocols share: endpoint, request bodies, errors, authentication, rate limits, SSE."""
