"""Read XLA's logs, and judge from them and from schedule dumps whether each module used the
profile.
"""
