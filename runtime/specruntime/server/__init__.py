"""An OpenAI-compatible server over one bundle: HTTP in front of `specruntime.serving`.

Needs the extra `server` (fastapi, sse-starlette, uvicorn, prometheus-client), which is imported by its modules and not
by this one.
"""
