"""The provider audit: whether the target itself could have written what a provider sent.

For a faithful provider the sum over tokens of (-log p(x_t) - H(p_t)), under the target's
distribution p_t, is a sum of martingale differences: its mean is 0, and p_t gives its variance.
Another temperature, other weights or another model drive it away, the further the more tokens
there are. docs/audit.md has the assumptions and what was measured.
"""
