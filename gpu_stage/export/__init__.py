"""The draft as engines load it: layouts → write."""
