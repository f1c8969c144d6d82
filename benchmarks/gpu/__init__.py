"""What a GPU shows of pgle: parts that measure and record, within a limit of time and without a
network.
"""
