"""The controller's side of the agents in the pods: their bundle, the protocol, and their reports.

`docs/contract.md` describes the protocol; the trainer implements the other side.
"""
