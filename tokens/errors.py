"""What can go wrong between text and ids.

TokensError        every error of this package
├── FolderError    a folder holds no tokenizer that a known family can load
└── Unrenderable   a conversation or a text that the family cannot put into tokens
"""


class TokensError(Exception):
    """The message says what happened, where and what to do."""


class FolderError(TokensError):
    """A folder holds no tokenizer that a known family can load."""


class Unrenderable(TokensError):
    """A conversation or a text that the family cannot put into tokens."""


class HalfCharacter(Unrenderable):
    """Half a surrogate pair, which JSON can spell and UTF-8 cannot."""
