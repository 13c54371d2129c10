"""Hidden states in the offline formats of other trainers: made here, trained there, and back.

A module a format, with `write` and `read` of `Plain` samples. To add one, write its module and
name it in `exchange.FORMATS`.
"""
