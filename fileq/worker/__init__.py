"""Claims jobs, has them run, settles them, and survives what they do."""
