"""The domain: jobs, claims, outcomes, settlements, the retry policy and the events.

Pure values and functions. No I/O, no broker, no configuration: other packages pass in what is needed.
"""
