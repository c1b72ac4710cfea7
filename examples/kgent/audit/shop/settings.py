"""Settings of the shop."""

DEBUG = True
ALLOWED_HOSTS = ["*"]
