"""The HTTP client for model services and web pages: HTTP/1.1 on asyncio, TLS and proxies."""
