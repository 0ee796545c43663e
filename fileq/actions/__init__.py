"""Changes of jobs and files that people and programs choose: many at once, by one rule of repetition (bulk.py)."""
