"""`make bench`: the installed fileq beside other queues, on one private server. docs/benchmarks.md explains it.

programs   what each system runs: its task and its client; each in the environment of its system
systems    which systems there are, their settings, how their programs are started
measures   what is measured; one module an idea
report     medians, ratios, the tables, the page
"""
