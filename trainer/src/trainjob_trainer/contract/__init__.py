"""What the operator and the trainer share, each thing once; `docs/contract.md` describes it for people.

Only Python's standard library, in Python 3.9, and nothing else of this package: the operator imports it, and
the agent before TensorFlow.
"""
