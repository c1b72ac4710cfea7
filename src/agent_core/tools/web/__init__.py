"""`web.fetch`: reads a page of the web, for models whose service has no such tool."""
