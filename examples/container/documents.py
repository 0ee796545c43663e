"""Checks that YAML files can be parsed, and counts their documents."""

from __future__ import annotations

import yaml

import fileq


@fileq.handler("**/*.{yaml,yml}", timeout="30s")
def check(job: fileq.JobView, context: fileq.Context) -> dict[str, int]:
    with job.open() as file:
        try:
            documents = list(yaml.safe_load_all(file))
        except yaml.YAMLError as error:
            raise fileq.Permanent(f"not YAML: {error}") from error
    context.log.info("documents.checked", path=job.path, documents=len(documents))
    return {"documents": len(documents)}
