"""Flow IR: parsing, validation, references and inputs."""
