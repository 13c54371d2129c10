"""An OpenRouter that runs on this machine: for the demo, for tests and for load.

It answers as the recorded traffic does, misbehaves as users of the service have
reported, and keeps exact books of what it charged, so that a client's own spend can
be held against them. It imports nothing of the rest of the project.

A request's way: `app` (which path?) → `completions` (admitted? which endpoint? which
fault?) → a backend (the text) → `wire` or `stream` (the bytes) → `books` (the money).
"""
