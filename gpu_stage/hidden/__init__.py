"""Hidden states of samples on disk: made shard by shard, read by memory map, checked, spooled.

`hidden/` mirrors the parts that its samples come from. A shard is two files: `….safetensors` with
the states, and `….json`, its index, which is written last: a shard without one is not there.
"""
