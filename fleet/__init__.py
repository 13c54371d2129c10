"""What the producer, the workers and the GPU stage share: run files, records, ledger, Celery app.

Imports neither requests nor torch, so that every image can carry it.
"""

__version__ = "0.1.0"
