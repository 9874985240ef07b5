"""Pools of other libraries replaced by ours, in programs that were written for those."""
