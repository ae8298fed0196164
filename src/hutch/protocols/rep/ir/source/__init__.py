"""Sources of flows: files in JSON and YAML, the short form, manifests and projects."""
